"""The ports of the flow on SQLite and on PostgreSQL."""
