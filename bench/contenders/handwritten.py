"""A hand-written inbox on psycopg: one table, one endpoint, and a loop with SKIP LOCKED.

The handler's statement and the event's done mark commit together, for one event or for a batch.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import uvloop
from fastapi import FastAPI

from bench.contenders.empty import run
from bench.contenders.interface import Place
from bench.contenders.recipe import Keep, application, make_pool, pool_lifespan
from bench.deliveries import EVENT_TYPE, body, random_ids
from bench.effects import PSYCOPG_STATEMENTS, make_tables, parameters

CHANNEL = "events"
IDLE_SECONDS = 1.0

TABLES = """
CREATE TABLE events (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    type text NOT NULL,
    body bytea NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    done_at timestamptz
);
CREATE INDEX events_to_do ON events (number) WHERE done_at IS NULL;
"""
INSERT = "INSERT INTO events (id, type, body) VALUES (%s, %s, %s) ON CONFLICT (id) DO NOTHING"
CLAIM = """
SELECT number, body FROM events WHERE done_at IS NULL
ORDER BY number LIMIT %s FOR UPDATE SKIP LOCKED
"""
DONE = "UPDATE events SET done_at = clock_timestamp() WHERE number = ANY(%s)"

RunBatch = Callable[[int], Awaitable[int]]
"""Claim and run up to so many events in one transaction; return how many there were."""


def announcing(insert: str) -> str:
    """Return an insert that also notifies the workers."""
    return f"WITH kept AS ({insert} RETURNING 1) SELECT pg_notify('{CHANNEL}', '') FROM kept"


class Program:
    """INSERT … ON CONFLICT DO NOTHING to receive, SKIP LOCKED to work."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def prepare(self) -> None:
        """Create the table of events and the handler's tables."""
        with psycopg.connect(self._place.database, autocommit=True) as connection:
            connection.execute(TABLES)
        make_tables(self._place.database)

    def serve(self) -> None:
        """Receive until killed."""
        run(self._application(), self._place.port)

    def work(self) -> None:
        """Work until killed."""
        uvloop.run(self._work())

    def fill(self, count: int) -> None:
        """Queue events with COPY."""
        with psycopg.connect(self._place.database) as connection:
            copy_in = "COPY events (id, type, body) FROM STDIN"
            with connection.cursor().copy(copy_in) as copy:
                for number, event_id in enumerate(random_ids(count, seed=count)):
                    copy.write_row((event_id, EVENT_TYPE, body(event_id, number)))

    def received(self) -> set[str]:
        """Return the ids in the table."""
        with psycopg.connect(self._place.database) as connection:
            return {event_id for (event_id,) in connection.execute("SELECT id FROM events")}

    # The parts that depend on the driver.

    def _application(self) -> FastAPI:
        pool = make_pool(self._place.database)
        return application(self._keep(pool), pool_lifespan(pool))

    def _keep(self, pool: Any) -> Keep:
        """Return the endpoint's write: one statement, which commits by itself."""
        statement = announcing(INSERT) if self._place.is_announcing else INSERT

        async def keep(event: dict[str, Any], content: bytes) -> None:
            async with pool.connection() as connection:
                await connection.execute(statement, (event["id"], event["type"], content))

        return keep

    async def _listen(self, arrivals: asyncio.Condition) -> None:
        connection = await psycopg.AsyncConnection.connect(self._place.database, autocommit=True)
        await connection.execute(f"LISTEN {CHANNEL}")
        async for _ in connection.notifies():
            await wake_one(arrivals)

    async def _connect(self) -> RunBatch:
        connection = await psycopg.AsyncConnection.connect(self._place.database, autocommit=True)
        statement = PSYCOPG_STATEMENTS[self._place.workload]

        async def handle(event: dict[str, Any]) -> None:
            await connection.execute(statement, parameters(event))

        async def run_batch(limit: int) -> int:
            async with connection.transaction():
                rows = await (await connection.execute(CLAIM, (limit,))).fetchall()
                for _, content in rows:
                    await handle(json.loads(content))
                if rows:
                    await connection.execute(DONE, ([number for number, _ in rows],))
            return len(rows)

        return run_batch

    # The loop, which does not.

    async def _work(self) -> None:
        arrivals = asyncio.Condition()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(arrivals))
            for _ in range(self._place.concurrency):
                tasks.create_task(self._loop(arrivals))

    async def _loop(self, arrivals: asyncio.Condition) -> None:
        """Run batches; after a failed one, as many events one by one before the next batch."""
        run_batch = await self._connect()
        singles = 0
        while True:
            limit = 1 if singles else self._place.batch_size
            try:
                count = await run_batch(limit)
            except Exception:
                if limit == 1:
                    raise
                singles = limit
                continue
            singles = max(0, singles - count)
            if not count:
                await _wait(arrivals)


async def wake_one(arrivals: asyncio.Condition) -> None:
    """Wake one of the idle loops."""
    async with arrivals:
        arrivals.notify(1)


async def _wait(arrivals: asyncio.Condition) -> None:
    async with arrivals:
        try:
            await asyncio.wait_for(arrivals.wait(), IDLE_SECONDS)
        except TimeoutError:
            return
