"""What people do with the ledger, and what time does."""
