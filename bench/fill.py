"""Fills a ledger by SQL, past the receiver: millions of events in minutes.

All that knows the tables of Onceward is here; it follows store/migrations.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg

from bench.deliveries import BODY_BYTES, EVENT_TYPE

BATCH = 125_000
WRITERS = 2

ORDERED, RANDOM = ORDERS = ("ordered", "random")

# The same ids as bench.deliveries makes.
_IDS = {
    ORDERED: "'evt_' || lpad(to_hex(n), 32, '0')",
    RANDOM: "'evt_' || md5('filled' || n)",
}

_EVENTS = """
INSERT INTO onceward.events (id, received_at, source, routed, event_id, type, body_sha256)
SELECT
    n, {received_at}, (SELECT id FROM onceward.sources WHERE name = 'bench'), true, {event_id},
    '{type}', sha256(n::text::bytea)
FROM generate_series({first}::bigint, {last}::bigint) AS n
"""
_PAYLOADS = """
INSERT INTO onceward.payloads (event, received_at, headers, body)
SELECT
    n, {received_at}, '{{"content-type":"application/json"}}'::bytea,
    convert_to(rpad('{{"id":"' || {event_id} || '","account":' || n % 1000 || ',"amount":1}}',
                    {body_bytes}), 'UTF8')
FROM generate_series({first}::bigint, {last}::bigint) AS n
"""
_JOBS = """
INSERT INTO onceward.jobs (
    event, received_at, available_at, created_at, finished_at, handler, attempts, max_attempts,
    status
)
SELECT
    n, {received_at}, {received_at}, {received_at}, {finished_at},
    (SELECT id FROM onceward.handlers WHERE name = 'payment'), {attempts}, 3, '{status}'
FROM generate_series({first}::bigint, {last}::bigint) AS n
"""
# From the start of this week's partition until now, in order.
_SPAN = """
SELECT week, now() - week
FROM (SELECT date_trunc('week', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS week) AS this
"""
_LAST = "SELECT coalesce(max(id), 0) FROM onceward.events"
_TAKE_IDS = """
SELECT setval('onceward.ledger_ids', greatest(last_value, {events})) FROM onceward.ledger_ids
"""
_RECEIVED_AT = "'{week}'::timestamptz + '{span}'::interval * (n / {events}.0)"


def fill(database: str, events: int, *, order: str, is_done: bool) -> None:
    """Add events with their payloads and jobs, until there are so many."""
    with psycopg.connect(database, autocommit=True) as connection:
        week, span = _row(connection, _SPAN)
        (last,) = _row(connection, _LAST)
        received_at = _RECEIVED_AT.format(week=week, span=span, events=events)
        words = {
            "received_at": received_at,
            "event_id": _IDS[order],
            "type": EVENT_TYPE,
            "body_bytes": BODY_BYTES,
            "finished_at": received_at if is_done else "NULL::timestamptz",
            "attempts": 1 if is_done else 0,
            "status": "done" if is_done else "queued",
        }
        batches = [
            words | {"first": first, "last": min(first + BATCH - 1, events)}
            for first in range(last + 1, events + 1, BATCH)
        ]
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(partial(_insert, database), batches))
        _row(connection, _TAKE_IDS.format(events=events))


def queue(database: str, jobs: int, *, order: str) -> None:
    """Add so many events whose jobs are not done."""
    with psycopg.connect(database, autocommit=True) as connection:
        (last,) = _row(connection, _LAST)
    fill(database, last + jobs, order=order, is_done=False)


def _insert(database: str, words: Mapping[str, object]) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("SET synchronous_commit = off")
        for statement in (_EVENTS, _PAYLOADS, _JOBS):
            connection.execute(statement.format(**words))


def _row(connection: psycopg.Connection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None, "these queries always have a row"
    return row
