"""A hand-written inbox on psycopg: one table, one endpoint, and a SKIP LOCKED loop.

The handler's statement and the event's done mark commit together, for one event or for a batch.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import uvloop
from fastapi import FastAPI

from bench.contenders.endpoint import StoreEvent, make_app, make_pool, pool_lifespan
from bench.contenders.interface import ContenderConfig
from bench.contenders.server import run_server
from bench.deliveries import EVENT_TYPE, make_body, random_ids
from bench.workloads import PSYCOPG_STATEMENTS, create_handler_tables, parameters

CHANNEL = "events"
IDLE_SECONDS = 1.0

TABLE = """
CREATE TABLE events (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    type text NOT NULL,
    body bytea NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    done_at timestamptz
);
CREATE INDEX events_queued ON events (number) WHERE done_at IS NULL;
"""
INSERT = "INSERT INTO events (id, type, body) VALUES (%s, %s, %s) ON CONFLICT (id) DO NOTHING"
# Claims and marks at once: a rollback undoes the mark. In an ARRAY, the SELECT runs once.
CLAIM = """
UPDATE events SET done_at = clock_timestamp() WHERE number = ANY(ARRAY(
    SELECT number FROM events WHERE done_at IS NULL
    ORDER BY number LIMIT %s FOR UPDATE SKIP LOCKED
))
RETURNING number, body
"""

Handle = Callable[[dict[str, Any]], Awaitable[None]]
"""Runs the handler for a decoded event."""

RunBatch = Callable[[int], Awaitable[int]]
"""Runs up to so many events in one transaction, and returns how many there were."""


def with_notification(insert: str) -> str:
    """Return an insert that also wakes a worker."""
    return f"WITH stored AS ({insert} RETURNING 1) SELECT pg_notify('{CHANNEL}', '') FROM stored"


class Program:
    """INSERT … ON CONFLICT DO NOTHING to receive, SKIP LOCKED to work."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config

    def create_tables(self) -> None:
        """Create the table of events and the handler's tables."""
        with psycopg.connect(self._config.database, autocommit=True) as connection:
            connection.execute(TABLE)
        create_handler_tables(self._config.database)

    def serve(self) -> None:
        """Receive until killed."""
        run_server(self._make_app(), self._config.port)

    def work(self) -> None:
        """Run handlers until killed."""
        uvloop.run(self._work())

    def enqueue(self, count: int) -> None:
        """Queue events with COPY."""
        with psycopg.connect(self._config.database) as connection:
            copy_in = "COPY events (id, type, body) FROM STDIN"
            with connection.cursor().copy(copy_in) as copy:
                for number, event_id in enumerate(random_ids(count, seed=count)):
                    copy.write_row((event_id, EVENT_TYPE, make_body(event_id, number)))

    def received_ids(self) -> set[str]:
        """Return the event ids in the table."""
        with psycopg.connect(self._config.database) as connection:
            return {event_id for (event_id,) in connection.execute("SELECT id FROM events")}

    # The driver's part.

    def _make_app(self) -> FastAPI:
        pool = make_pool(self._config.database)
        return make_app(self._store_event(pool), pool_lifespan(pool))

    def _store_event(self, pool: Any) -> StoreEvent:
        statement = with_notification(INSERT) if self._config.has_notifications else INSERT

        async def store(event: dict[str, Any], body: bytes) -> None:
            async with pool.connection() as connection:
                await connection.execute(statement, (event["id"], event["type"], body))

        return store

    async def _listen(self, arrivals: asyncio.Condition) -> None:
        connection = await psycopg.AsyncConnection.connect(self._config.database, autocommit=True)
        await connection.execute(f"LISTEN {CHANNEL}")
        async for _ in connection.notifies():
            await wake_one(arrivals)

    async def _connect(self) -> RunBatch:
        connection = await psycopg.AsyncConnection.connect(self._config.database, autocommit=True)
        handle = self._make_handler(connection)

        async def run_batch(limit: int) -> int:
            async with connection.transaction():
                rows = await (await connection.execute(CLAIM, (limit,))).fetchall()
                for _, body in sorted(rows):  # RETURNING keeps no order
                    await handle(json.loads(body))
            return len(rows)

        return run_batch

    def _make_handler(self, connection: psycopg.AsyncConnection) -> Handle:
        statement = PSYCOPG_STATEMENTS[self._config.workload]

        async def handle(event: dict[str, Any]) -> None:
            await connection.execute(statement, parameters(event))

        return handle

    # The loop, for any driver.

    async def _work(self) -> None:
        arrivals = asyncio.Condition()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(arrivals))
            for _ in range(self._config.concurrency):
                tasks.create_task(self._loop(arrivals))

    async def _loop(self, arrivals: asyncio.Condition) -> None:
        """Run batches; after a failed batch, run as many events one by one."""
        run_batch = await self._connect()
        singles = 0
        while True:
            limit = 1 if singles else self._config.batch_size
            try:
                count = await run_batch(limit)
            except Exception:
                if limit == 1:
                    raise
                singles = limit
                continue
            singles = max(0, singles - count)
            if not count:
                await _wait_for(arrivals)


async def wake_one(arrivals: asyncio.Condition) -> None:
    """Wake one of the idle loops."""
    async with arrivals:
        arrivals.notify(1)


async def _wait_for(arrivals: asyncio.Condition) -> None:
    async with arrivals:
        try:
            await asyncio.wait_for(arrivals.wait(), IDLE_SECONDS)
        except TimeoutError:
            return
