"""Databases for tests to use one after the other: emptying one is faster than making one."""

import time
from typing import Any

import psycopg

from support.postgres import Cluster

SLOW_WRITE_SECONDS = 0.2

# What tells whether a test left the database as it was made, but for rows.
SHAPE = """
    SELECT
        (SELECT (count(*), max(oid)) FROM pg_class WHERE relpersistence <> 't'
            AND relnamespace <> 'pg_toast'::regnamespace)::text,
        (SELECT (count(*), max(oid)) FROM pg_constraint)::text,
        (SELECT (count(*), max(oid)) FROM pg_trigger)::text,
        (SELECT (count(*), max(oid)) FROM pg_proc)::text,
        (SELECT count(*) FROM pg_db_role_setting d JOIN pg_database b ON b.oid = d.setdatabase
            WHERE datname = current_database()),
        (SELECT count(*) FROM onceward.migrations)
"""
# What a test made beside our own schema, as a user would.
TABLES = """
    SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace)
        + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
"""
GUESTS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
EMPTY = """
    SET session_replication_role = replica;  -- the audit trail's own trigger refuses this
    DO $$
    DECLARE
        entry record;
    BEGIN
        FOR entry IN
            SELECT oid::regclass AS name FROM pg_class
            WHERE relnamespace = 'onceward'::regnamespace AND relkind IN ('r', 'p')
            AND NOT relispartition AND relname <> 'migrations'
        LOOP
            EXECUTE 'DELETE FROM ' || entry.name;
        END LOOP;
        PERFORM setval(oid::regclass, 1, false) FROM pg_class
        WHERE relnamespace = 'onceward'::regnamespace AND relkind = 'S';
    END $$
"""


class Copies:
    """Copies of one database: each in one test's hands at a time, and empty when it gets there."""

    def __init__(self, cluster: Cluster, template: str) -> None:
        self._cluster = cluster
        self._template = template
        self._shape = _shape(template)
        self._free: list[str] = []

    def take(self) -> str:
        """The address of an empty one."""
        self._cluster.start()  # an earlier test may have crashed it and failed
        return self._free.pop() if self._free else self._cluster.create_database(self._template)

    def give_back(self, url: str) -> None:
        """Empty it for the next test; drop it where our own schema is not as it was."""
        self._cluster.start()
        if _emptied(url, self._shape):
            self._free.append(url)
        else:
            self._cluster.drop(url)


def _shape(url: str) -> tuple[Any, ...]:
    with psycopg.connect(url) as connection:
        row = connection.execute(SHAPE).fetchone()
    assert row is not None
    return row


def _emptied(url: str, shape: tuple[Any, ...]) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + SLOW_WRITE_SECONDS
        while connection.execute(GUESTS).fetchone() != (0,):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        if connection.execute(TABLES).fetchone() != (0,):
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        if connection.execute(SHAPE).fetchone() != shape:
            return False
        connection.execute(EMPTY)
    return True
