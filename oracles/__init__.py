"""Compare Onceward's verification with that of the providers' libraries."""
