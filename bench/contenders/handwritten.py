"""What a team writes for itself: a table, an endpoint, and a loop with SKIP LOCKED.

The handler's statement and the mark that the event is done are one transaction.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import uvloop

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
INSERT_AND_TELL = f"WITH kept AS ({INSERT} RETURNING 1) SELECT pg_notify('{CHANNEL}', '') FROM kept"
NEXT = """
SELECT number, body FROM events WHERE done_at IS NULL
ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED
"""
DONE = "UPDATE events SET done_at = clock_timestamp() WHERE number = %s"


class Program:
    """INSERT … ON CONFLICT DO NOTHING in front, SKIP LOCKED behind."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pool = make_pool(place.database)

    def prepare(self) -> None:
        """Make the table of events, and the handler's."""
        with psycopg.connect(self._place.database, autocommit=True) as connection:
            connection.execute(TABLES)
        make_tables(self._place.database)

    def serve(self) -> None:
        """Receive until killed."""
        run(application(self.keep(), pool_lifespan(self._pool)), self._place.port)

    def keep(self) -> Keep:
        """How an event is kept: one statement, which commits by itself."""
        statement = INSERT_AND_TELL if self._place.is_announcing else INSERT

        async def keep(event: dict[str, Any], content: bytes) -> None:
            async with self._pool.connection() as connection:
                await connection.execute(statement, (event["id"], event["type"], content))

        return keep

    def work(self) -> None:
        """Work until killed."""
        uvloop.run(self._work())

    def fill(self, count: int) -> None:
        """Copy events in."""
        with psycopg.connect(self._place.database) as connection:
            copy_in = "COPY events (id, type, body) FROM STDIN"
            with connection.cursor().copy(copy_in) as copy:
                for number, event_id in enumerate(random_ids(count, seed=count)):
                    copy.write_row((event_id, EVENT_TYPE, body(event_id, number)))

    def received(self) -> set[str]:
        """What the table holds."""
        with psycopg.connect(self._place.database) as connection:
            return {event_id for (event_id,) in connection.execute("SELECT id FROM events")}

    async def _work(self) -> None:
        arrivals = asyncio.Condition()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(arrivals))
            for _ in range(self._place.concurrency):
                tasks.create_task(self._loop(arrivals))

    async def _listen(self, arrivals: asyncio.Condition) -> None:
        connection = await psycopg.AsyncConnection.connect(self._place.database, autocommit=True)
        await connection.execute(f"LISTEN {CHANNEL}")
        async for _ in connection.notifies():
            async with arrivals:
                arrivals.notify(1)

    async def _loop(self, arrivals: asyncio.Condition) -> None:
        connection = await psycopg.AsyncConnection.connect(self._place.database, autocommit=True)
        handle = _handler(connection, self._place.workload)
        while True:
            if await _run_one(connection, handle):
                continue
            async with arrivals:
                try:
                    await asyncio.wait_for(arrivals.wait(), IDLE_SECONDS)
                except TimeoutError:
                    continue


def _handler(
    connection: psycopg.AsyncConnection, workload: str
) -> Callable[[dict[str, Any]], Awaitable[object]]:
    statement = PSYCOPG_STATEMENTS[workload]

    async def handle(event: dict[str, Any]) -> None:
        await connection.execute(statement, parameters(event))

    return handle


async def _run_one(
    connection: psycopg.AsyncConnection, handle: Callable[[dict[str, Any]], Awaitable[object]]
) -> bool:
    """Take one event, if there is one, and do what it asks for, in one transaction."""
    async with connection.transaction():
        row = await (await connection.execute(NEXT)).fetchone()
        if row is None:
            return False
        number, content = row
        await handle(json.loads(content))
        await connection.execute(DONE, (number,))
    return True
