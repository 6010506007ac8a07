"""The hand-written inbox on asyncpg: the same table, endpoint and loop, with the other driver."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from fastapi import FastAPI

from bench.contenders import handwritten
from bench.contenders.asyncpg_pool import make_pool
from bench.contenders.handwritten import CHANNEL, RunBatch, announcing, wake_one
from bench.contenders.recipe import application
from bench.effects import ASYNCPG_STATEMENTS, asyncpg_parameters

INSERT = "INSERT INTO events (id, type, body) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING"
CLAIM = """
SELECT number, body FROM events WHERE done_at IS NULL
ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED
"""
DONE = "UPDATE events SET done_at = clock_timestamp() WHERE number = ANY($1)"


class Program(handwritten.Program):
    """The psycopg program with its four driver calls replaced."""

    def _application(self) -> FastAPI:
        pools: list[Any] = []
        statement = announcing(INSERT) if self._place.is_announcing else INSERT

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with make_pool(self._place.database) as pool:
                pools.append(pool)
                yield

        async def keep(event: dict[str, Any], content: bytes) -> None:
            await pools[0].execute(statement, event["id"], event["type"], content)

        return application(keep, lifespan)

    async def _listen(self, arrivals: asyncio.Condition) -> None:
        connection = await asyncpg.connect(self._place.database)
        wakes: set[asyncio.Task[None]] = set()

        def notified(*_: Any) -> None:
            wake = asyncio.create_task(wake_one(arrivals))
            wakes.add(wake)
            wake.add_done_callback(wakes.discard)

        await connection.add_listener(CHANNEL, notified)
        await asyncio.Event().wait()

    async def _connect(self) -> RunBatch:
        connection = await asyncpg.connect(self._place.database)
        workload = self._place.workload
        statement = ASYNCPG_STATEMENTS[workload]

        async def handle(event: dict[str, Any]) -> None:
            await connection.execute(statement, *asyncpg_parameters(workload, event))

        async def run_batch(limit: int) -> int:
            async with connection.transaction():
                rows = await connection.fetch(CLAIM, limit)
                for _, content in rows:
                    await handle(json.loads(content))
                if rows:
                    await connection.execute(DONE, [number for number, _ in rows])
            return len(rows)

        return run_batch
