"""The stores: the ledger, the queue, the effects and the desk on SQLite and on PostgreSQL."""
