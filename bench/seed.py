"""Seeds Onceward's ledger with SQL: millions of events in minutes, past the receiver.

This module and `bench.seed_weeks` depend on Onceward's tables (store/postgres/migrations).
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg

from bench.deliveries import BODY_BYTES, EVENT_TYPE

BATCH_EVENTS = 125_000
WRITERS = 2

ORDERED, RANDOM = ID_ORDERS = ("ordered", "random")

# The same form as the ids of bench.deliveries.
RANDOM_ID = "'evt_' || md5('seeded' || n)"
_IDS = {ORDERED: "'evt_' || lpad(to_hex(n), 32, '0')", RANDOM: RANDOM_ID}

EVENTS = """
INSERT INTO onceward.events (id, received_at, source, routed, event_id, type, body_sha256)
SELECT
    n, {received_at}, (SELECT id FROM onceward.sources WHERE name = 'bench'), true, {event_id},
    '{type}', sha256(n::text::bytea)
FROM generate_series({first}::bigint, {last}::bigint, {step}::bigint) AS n
"""
PAYLOADS = """
INSERT INTO onceward.payloads (event, received_at, headers, body)
SELECT
    n, {received_at}, '{{"content-type":"application/json"}}'::bytea,
    convert_to(rpad('{{"id":"' || {event_id} || '","account":' || n % 1000 || ',"amount":1}}',
                    {body_bytes}), 'UTF8')
FROM generate_series({first}::bigint, {last}::bigint, {step}::bigint) AS n
"""
_JOBS = """
INSERT INTO onceward.jobs (
    event, received_at, available_at, created_at, finished_at, handler, attempts, max_attempts,
    status
)
SELECT
    n, {received_at}, {received_at}, {received_at}, {finished_at},
    (SELECT id FROM onceward.handlers WHERE name = '{handler}'), {attempts}, 3, '{status}'
FROM generate_series({first}::bigint, {last}::bigint, {step}::bigint) AS n
"""
# This week's partition, from its start until now.
_SPAN = """
SELECT week, now() - week
FROM (SELECT date_trunc('week', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS week) AS this
"""
_LAST_ID = "SELECT coalesce(max(id), 0) FROM onceward.events"
_ADVANCE_SEQUENCE = """
SELECT setval('onceward.ledger_ids', greatest(last_value, {events})) FROM onceward.ledger_ids
"""
_RECEIVED_AT = "'{week}'::timestamptz + '{span}'::interval * (n / {events}.0)"


def seed(
    database: str,
    events: int,
    *,
    id_order: str,
    is_done: bool,
    handler: str = "payment",
    type: str = EVENT_TYPE,
) -> None:
    """Add events with their payloads and jobs until the ledger has `events`."""
    with psycopg.connect(database, autocommit=True) as connection:
        week, span = _row(connection, _SPAN)
        (last_id,) = _row(connection, _LAST_ID)
        received_at = _RECEIVED_AT.format(week=week, span=span, events=events)
        values = {
            "step": 1,
            "received_at": received_at,
            "event_id": _IDS[id_order],
            "type": type,
            "handler": handler,
            "body_bytes": BODY_BYTES,
            "finished_at": received_at if is_done else "NULL::timestamptz",
            "attempts": 1 if is_done else 0,
            "status": "done" if is_done else "queued",
        }
        batches = [
            values | {"first": first, "last": min(first + BATCH_EVENTS - 1, events)}
            for first in range(last_id + 1, events + 1, BATCH_EVENTS)
        ]
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(partial(_insert, database), batches))
        _row(connection, _ADVANCE_SEQUENCE.format(events=events))


def seed_queued(
    database: str, jobs: int, *, id_order: str, handler: str = "payment", type: str = EVENT_TYPE
) -> None:
    """Add events whose jobs are still queued."""
    with psycopg.connect(database, autocommit=True) as connection:
        (last_id,) = _row(connection, _LAST_ID)
    seed(database, last_id + jobs, id_order=id_order, is_done=False, handler=handler, type=type)


def _insert(database: str, values: Mapping[str, object]) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("SET synchronous_commit = off")
        for statement in (EVENTS, PAYLOADS, _JOBS):
            connection.execute(statement.format(**values))


def _row(connection: psycopg.Connection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None, "these queries always return a row"
    return row
