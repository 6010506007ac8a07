"""Optional services beside the ledger: faster with them, the same without them."""
