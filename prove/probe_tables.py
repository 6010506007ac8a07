"""The tables that the handlers of the inbox under test write, for the checker."""

TABLES = (
    # No constraint: work that is committed twice must show up twice.
    "CREATE TABLE IF NOT EXISTS probes (event varchar(255), worker integer, is_first integer)",
    "CREATE TABLE IF NOT EXISTS accounts (name varchar(255) PRIMARY KEY, balance bigint)",
    # Nor here: one row for each end of a job as failed.
    "CREATE TABLE IF NOT EXISTS given_up (event varchar(255))",
)
