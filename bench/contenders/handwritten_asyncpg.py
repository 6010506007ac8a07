"""The hand-written inbox on asyncpg: the same table, endpoint and loop, with the other driver."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from fastapi import FastAPI

from bench.contenders import handwritten_psycopg
from bench.contenders.asyncpg_pool import make_pool
from bench.contenders.endpoint import make_app
from bench.contenders.handwritten_psycopg import (
    CHANNEL,
    Handle,
    RunBatch,
    wake_one,
    with_notification,
)
from bench.workloads import ASYNCPG_STATEMENTS, asyncpg_parameters

INSERT = "INSERT INTO events (id, type, body) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING"
CLAIM = handwritten_psycopg.CLAIM.replace("%s", "$1")


class Program(handwritten_psycopg.Program):
    """The program on psycopg with the driver's part replaced."""

    def _make_app(self) -> FastAPI:
        pools: list[Any] = []
        statement = with_notification(INSERT) if self._config.has_notifications else INSERT

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with make_pool(self._config.database) as pool:
                pools.append(pool)
                yield

        async def store(event: dict[str, Any], body: bytes) -> None:
            await pools[0].execute(statement, event["id"], event["type"], body)

        return make_app(store, lifespan)

    async def _listen(self, arrivals: asyncio.Condition) -> None:
        connection = await asyncpg.connect(self._config.database)
        wakes: set[asyncio.Task[None]] = set()

        def wake(*_: Any) -> None:
            task = asyncio.create_task(wake_one(arrivals))
            wakes.add(task)
            task.add_done_callback(wakes.discard)

        await connection.add_listener(CHANNEL, wake)
        await asyncio.Event().wait()

    async def _connect(self) -> RunBatch:
        connection = await asyncpg.connect(self._config.database)
        handle = self._make_handler(connection)

        async def run_batch(limit: int) -> int:
            async with connection.transaction():
                rows = await connection.fetch(CLAIM, limit)
                for _, body in sorted(rows):  # RETURNING keeps no order
                    await handle(json.loads(body))
            return len(rows)

        return run_batch

    def _make_handler(self, connection: Any) -> Handle:
        workload = self._config.workload
        statement = ASYNCPG_STATEMENTS[workload]

        async def handle(event: dict[str, Any]) -> None:
            await connection.execute(statement, *asyncpg_parameters(workload, event))

        return handle
