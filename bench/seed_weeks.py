"""Seeds Onceward's ledger with weeks of the past: what retention purges and drops.

Like `bench.seed`, it depends on Onceward's tables. The ids of events and jobs follow the time. A
week's events arrive between its third and its sixth day: a number of whole days then divides any
two weeks.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Self

import psycopg

from bench.deliveries import BODY_BYTES, EVENT_TYPE
from bench.seed import BATCH_EVENTS, EVENTS, PAYLOADS, RANDOM_ID, WRITERS
from onceward.model.weeks import WEEK, Week
from onceward.store.locks import Lock
from onceward.store.postgres.connections import lock_statement

REDELIVERED_EVERY = 20
"""One event in so many came twice, and one job in so many needed a second attempt."""

_JOBS = """
INSERT INTO onceward.jobs (
    id, event, received_at, available_at, created_at, finished_at, handler, attempts, max_attempts,
    status, failure_type, last_error
)
OVERRIDING SYSTEM VALUE
SELECT
    n, n, {received_at}, {received_at}, {received_at}, {received_at},
    (SELECT id FROM onceward.handlers WHERE name = 'payment'), 1, 3,
    CASE WHEN n % {failed_every} = 0 THEN 'failed' ELSE 'done' END,
    CASE WHEN n % {failed_every} = 0 THEN 'permanent' END,
    CASE WHEN n % {failed_every} = 0 THEN 'PermanentError: the account is closed' END
FROM generate_series({first}::bigint, {last}::bigint, {step}::bigint) AS n
"""
_ATTEMPTS = """
INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error)
SELECT n, 1, 'worker', {received_at}, {received_at}, 'TimeoutError'
FROM generate_series({first}::bigint, {last}::bigint, {step}::bigint) AS n
WHERE n % {failed_every} = 0 OR n % {redelivered_every} = 1
"""
# Their ids are from the sequence of the events' ids, but none of those.
_DELIVERIES = """
INSERT INTO onceward.deliveries (id, event, received_at, outcome, body_sha256)
SELECT {redeliveries_from} + n, n, {received_at}, 'duplicate', sha256(n::text::bytea)
FROM generate_series({first}::bigint, {last}::bigint, {step}::bigint) AS n
WHERE n % {redelivered_every} = 0
"""
_STATEMENTS = (EVENTS, PAYLOADS, _JOBS, _ATTEMPTS, _DELIVERIES)
_REDELIVERIES_FROM = 1_000_000_000
_PARTITION = """
CREATE TABLE IF NOT EXISTS onceward.payloads_{name}
PARTITION OF onceward.payloads FOR VALUES FROM ('{start}') TO ('{end}')
"""
_ADVANCE_SEQUENCES = """
SELECT
    setval('onceward.ledger_ids', {redeliveries_from} * 2),
    setval(pg_get_serial_sequence('onceward.jobs', 'id'), {redeliveries_from} * 2)
"""
_DELETED = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relid = 'onceward.{table}'::regclass"
_COUNTED = ("events", "jobs", "attempts", "deliveries", "payloads")
_SIZES = """
SELECT c.relname, pg_relation_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'onceward' AND c.relkind IN ('r', 'i')
"""


@dataclass(frozen=True)
class History:
    """Weeks that are over, each with the same number of events."""

    weeks: Sequence[Week]
    events_per_week: int
    failed_every: int = 200
    """One job in so many has failed, and keeps its payload and its event."""

    @classmethod
    def before(cls, now: datetime, weeks: int, events_per_week: int, *, age_weeks: int) -> Self:
        """Return weeks of which the last ended `age_weeks` or more before a time."""
        last = Week.of(now - WEEK * (age_weeks + 1)).starts_at
        starts = [last - WEEK * number for number in reversed(range(weeks))]
        return cls([Week.of(start) for start in starts], events_per_week)

    def days_since(self, number: int) -> int:
        """Return the days to keep if a week, counted from 0, is the last one to go."""
        return (datetime.now(UTC) - self.weeks[number].ends_at).days

    def seed(self, database: str, numbers: Sequence[int]) -> None:
        """Add the events of some weeks, with their payloads, jobs, attempts and redeliveries."""
        self._seed(database, numbers, step=1)

    def seed_in_order(self, database: str, numbers: Sequence[int]) -> None:
        """Add weeks one by one: several writers at once would split the pages of indexes."""
        assert self.events_per_week <= BATCH_EVENTS, "a week has one writer"
        for number in numbers:
            self.seed(database, [number])

    def seed_survivors(self, database: str, numbers: Sequence[int]) -> None:
        """Add what a purge leaves of some weeks: the events whose jobs have failed."""
        for number in numbers:
            self._seed(database, [number], step=self.failed_every)

    def _seed(self, database: str, numbers: Sequence[int], *, step: int) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            for number in numbers:
                week = self.weeks[number]
                connection.execute(
                    _PARTITION.format(name=week.label, start=week.starts_at, end=week.ends_at)
                )
            connection.execute(_ADVANCE_SEQUENCES.format(redeliveries_from=_REDELIVERIES_FROM))
        batches = [batch for number in numbers for batch in self._batches(number, step)]
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(partial(_insert, database), batches))

    def _batches(self, number: int, step: int) -> Iterator[Mapping[str, object]]:
        end = (number + 1) * self.events_per_week
        start = self.weeks[number].starts_at + timedelta(days=2)
        share = f"(n - {number * self.events_per_week}) / {self.events_per_week}.0"
        for first in range(number * self.events_per_week + 1, end + 1, BATCH_EVENTS):
            yield {
                "first": first + -first % step,  # the first multiple of the step
                "last": min(first + BATCH_EVENTS - 1, end),
                "step": step,
                "received_at": f"'{start}'::timestamptz + interval '3 days' * ({share})",
                "event_id": RANDOM_ID,
                "type": EVENT_TYPE,
                "body_bytes": BODY_BYTES,
                "failed_every": self.failed_every,
                "redelivered_every": REDELIVERED_EVERY,
                "redeliveries_from": _REDELIVERIES_FROM,
            }


def _insert(database: str, values: Mapping[str, object]) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("SET synchronous_commit = off")
        for statement in _STATEMENTS:
            connection.execute(statement.format(**values))


@contextmanager
def held_maintenance(database: str) -> Iterator[psycopg.Connection]:
    """Make purges and drops wait, until the transaction of the yielded connection ends."""
    with psycopg.connect(database) as connection:
        connection.execute(lock_statement(Lock.LEDGER).encode())
        yield connection


def deleted_rows(database: str, table: str) -> int:
    """Return how many rows of a table were ever deleted: up to a second ago."""
    with psycopg.connect(database) as connection:
        row = connection.execute(_DELETED.format(table=table).encode()).fetchone()
    assert row is not None, "the table exists"
    return int(row[0])


def relation_bytes(database: str) -> dict[str, int]:
    """Return the size of every table and index of the ledger."""
    with psycopg.connect(database) as connection:
        return dict(connection.execute(_SIZES).fetchall())


def row_counts(database: str) -> dict[str, int]:
    """Return how many rows each table of the ledger has that `History` fills."""
    columns = ", ".join(f"(SELECT count(*) FROM onceward.{table})" for table in _COUNTED)
    with psycopg.connect(database) as connection:
        row = connection.execute(f"SELECT {columns}".encode()).fetchone()
    assert row is not None, "counts are always one row"
    return dict(zip(_COUNTED, row, strict=True))
