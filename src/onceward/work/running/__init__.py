"""Runs jobs: the transaction, the call of the handler, and what it may get wrong."""
