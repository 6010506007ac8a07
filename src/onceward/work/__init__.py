"""Claims jobs, runs their handlers and settles them."""
