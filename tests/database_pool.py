"""A pool of PostgreSQL databases for tests: emptying a database is faster than creating one."""

from typing import Any

import psycopg

from support.postgres import Cluster
from support.processes import ConditionTimeout, eventually

DISCONNECT_SECONDS = 0.2

# Describes the schema. A test that changed more than rows makes it differ from the template's.
FINGERPRINT = """
    SELECT
        (SELECT (count(*), max(oid)) FROM pg_class WHERE relpersistence <> 't'
            AND relnamespace <> 'pg_toast'::regnamespace)::text,
        (SELECT (count(*), max(oid)) FROM pg_constraint)::text,
        (SELECT (count(*), max(oid)) FROM pg_trigger)::text,
        (SELECT (count(*), max(oid)) FROM pg_proc)::text,
        (SELECT count(*) FROM pg_db_role_setting d JOIN pg_database b ON b.oid = d.setdatabase
            WHERE datname = current_database()),
        (SELECT count(*) FROM pg_class WHERE relpersistence = 'u'),
        (SELECT count(*) FROM onceward.migrations),
        -- Tables with statistics, from which later tests would get other plans.
        (SELECT count(*) FROM pg_class WHERE relnamespace = 'onceward'::regnamespace
            AND relkind = 'r' AND relpages > 0)
"""
COUNT_USER_OBJECTS = """
    SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace)
        + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
"""
COUNT_OTHER_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
DELETE_ROWS = """
    SET session_replication_role = replica;  -- a trigger protects the audit trail
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


class DatabasePool:
    """Copies of a template database. One test at a time uses a copy, and finds it empty."""

    def __init__(self, cluster: Cluster, template: str) -> None:
        self._cluster = cluster
        self._template = template
        self._fingerprint = _fingerprint(template)
        self._free: list[str] = []

    def acquire(self) -> str:
        """Return the URL of an empty database."""
        self._cluster.start()  # an earlier test may have crashed it and failed
        return self._free.pop() if self._free else self._cluster.create_database(self._template)

    def release(self, url: str) -> None:
        """Empty a database for the next test, or drop it if its schema was changed."""
        self._cluster.start()
        if _empty(url, self._fingerprint):
            self._free.append(url)
        else:
            self._cluster.drop(url)


def _fingerprint(url: str) -> tuple[Any, ...]:
    with psycopg.connect(url) as connection:
        row = connection.execute(FINGERPRINT).fetchone()
    assert row is not None
    return row


def _empty(url: str, fingerprint: tuple[Any, ...]) -> bool:
    """Delete all rows, and return whether the database can be used again."""
    with psycopg.connect(url, autocommit=True) as connection:

        def is_alone() -> bool:
            return connection.execute(COUNT_OTHER_SESSIONS).fetchone() == (0,)

        try:
            eventually(is_alone, "the test has disconnected", DISCONNECT_SECONDS)
        except ConditionTimeout:
            return False
        if connection.execute(COUNT_USER_OBJECTS).fetchone() != (0,):
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        if connection.execute(FINGERPRINT).fetchone() != fingerprint:
            return False
        connection.execute(DELETE_ROWS)
    return True
