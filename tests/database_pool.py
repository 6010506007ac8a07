"""A pool of PostgreSQL databases for tests: emptying a database is faster than creating one."""

from typing import Any

import psycopg

from support.postgres import Cluster
from support.processes import ConditionTimeout, eventually

DISCONNECT_SECONDS = 0.2

# Describe the schema. If a row was added, changed or removed, the last transaction or the count is
# another one.
_CATALOGS = {
    "pg_namespace": "nspname <> 'public' AND nspname !~ '^pg_'",
    "pg_class": "relpersistence <> 't' AND relnamespace <> 'pg_toast'::regnamespace",
    "pg_attribute": "attrelid IN (SELECT oid FROM pg_class"
    " WHERE relnamespace = 'onceward'::regnamespace)",
    "pg_attrdef": "true",
    "pg_constraint": "true",
    "pg_policy": "true",
    "pg_proc": "true",
    "pg_trigger": "true",
    "onceward.migrations": "true",
}
_COUNTS = ", ".join(
    f"(SELECT (count(*), max(xmin::text::bigint))::text FROM {catalog} WHERE {condition})"  # noqa: S608 - no outside input
    for catalog, condition in _CATALOGS.items()
)
FINGERPRINT = f"""
    SELECT {_COUNTS},
        (SELECT count(*) FROM pg_db_role_setting d JOIN pg_database b ON b.oid = d.setdatabase
            WHERE datname = current_database()),
        -- Tables with statistics, from which later tests would get other plans.
        (SELECT count(*) FROM pg_class WHERE relnamespace = 'onceward'::regnamespace
            AND relkind = 'r' AND relpages > 0)
"""  # noqa: S608 - no outside input
COUNT_USER_OBJECTS = """
    SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace)
        + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
"""
COUNT_OTHER_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# Triggers are off while rows are deleted: one protects the audit trail.
DELETE_ROWS = """
    SELECT 'SET session_replication_role = replica; ' || string_agg(
        CASE relkind WHEN 'S' THEN format('SELECT setval(%L, 1, false)', oid::regclass)
        ELSE format('DELETE FROM %s', oid::regclass) END, '; ')
    FROM pg_class
    WHERE relnamespace = 'onceward'::regnamespace AND relkind IN ('r', 'p', 'S')
    AND NOT relispartition AND relname <> 'migrations'
"""


class DatabasePool:
    """Copies of a template database. One test at a time uses a copy, and finds it empty."""

    def __init__(self, cluster: Cluster, template: str) -> None:
        self._cluster = cluster
        self._template = template
        self._fingerprint, self._delete_rows = _describe(template)
        self.free: list[str] = []
        """Databases that wait for a test."""

    def acquire(self) -> str:
        """Return the URL of an empty database."""
        self._cluster.start()  # an earlier test may have crashed it and failed
        return self.free.pop() if self.free else self._cluster.create_database(self._template)

    def release(self, url: str) -> None:
        """Empty a database for the next test, or drop it if its schema was changed."""
        self._cluster.start()
        if self._empty(url):
            self.free.append(url)
        else:
            self._cluster.drop(url)

    def _empty(self, url: str) -> bool:
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
            if connection.execute(FINGERPRINT).fetchone() != self._fingerprint:
                return False
            connection.execute(self._delete_rows)
        return True


def _describe(template: str) -> tuple[tuple[Any, ...], str]:
    """Return the fingerprint of a database, and the statements that delete its rows."""
    with psycopg.connect(template) as connection:
        fingerprint = connection.execute(FINGERPRINT).fetchone()
        ((delete_rows,),) = connection.execute(DELETE_ROWS).fetchall()
    assert fingerprint is not None
    return fingerprint, delete_rows
