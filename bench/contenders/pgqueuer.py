"""PgQueuer: a job queue on PostgreSQL, with the event's id as the dedupe key.

Set up as its guide to performance says: asyncpg, its autovacuum settings, a pool for producers, one
connection for the queue manager, and a larger batch for short jobs. The database skips repeated ids
(on_conflict="skip").
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import uvloop
from fastapi import FastAPI
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.contenders.asyncpg_pool import make_pool
from bench.contenders.endpoint import make_app
from bench.contenders.interface import ContenderConfig
from bench.contenders.server import run_server
from bench.deliveries import make_body, random_ids
from bench.workloads import (
    ASYNCPG_STATEMENTS,
    asyncpg_parameters,
    begin_job,
    create_handler_tables,
)

ENTRYPOINT = "payment"
ENQUEUE_BATCH = 1_000


class Program:
    """Its queries to receive, its queue manager to work."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config

    def create_tables(self) -> None:
        """Install its schema, and create the handler's tables."""
        asyncio.run(self._install())
        create_handler_tables(self._config.database)

    def serve(self) -> None:
        """Receive until killed."""
        opened: list[Queries] = []

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with make_pool(self._config.database) as pool:
                opened.append(Queries(AsyncpgPoolDriver(pool)))
                yield

        async def store(event: dict[str, Any], body: bytes) -> None:
            await opened[0].enqueue(ENTRYPOINT, body, dedupe_key=event["id"], on_conflict="skip")

        run_server(make_app(store, lifespan), self._config.port)

    def work(self) -> None:
        """Run handlers until killed."""
        uvloop.run(self._work())

    def enqueue(self, count: int) -> None:
        """Enqueue jobs in batches."""
        asyncio.run(self._enqueue(count))

    def received_ids(self) -> set[str]:
        """Return the dedupe keys of the queued jobs; finished jobs leave the table."""
        with psycopg.connect(self._config.database) as connection:
            rows = connection.execute("SELECT dedupe_key FROM pgqueuer")
            return {key for (key,) in rows}

    async def _install(self) -> None:
        async with make_pool(self._config.database) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))
            await queries.install()
            await queries.optimize_autovacuum()

    async def _enqueue(self, count: int) -> None:
        ids = random_ids(count, seed=count)
        bodies = [make_body(event_id, number) for number, event_id in enumerate(ids)]
        async with make_pool(self._config.database) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))
            for first in range(0, count, ENQUEUE_BATCH):
                part = slice(first, first + ENQUEUE_BATCH)
                size = len(ids[part])
                await queries.enqueue(
                    [ENTRYPOINT] * size, bodies[part], [0] * size, dedupe_key=ids[part]
                )

    async def _work(self) -> None:
        async with make_pool(self._config.database) as pool:
            connection = await asyncpg.connect(self._config.database)
            queue = PgQueuer.from_asyncpg_connection(connection)
            workload = self._config.workload
            statement = ASYNCPG_STATEMENTS[workload]

            @queue.entrypoint(ENTRYPOINT)
            async def handle(job: Job) -> None:
                event = json.loads(job.payload)
                if self._config.job_seconds:
                    await asyncio.sleep(begin_job(self._config))
                await pool.execute(statement, *asyncpg_parameters(workload, event))

            options = {}
            if self._config.lease_seconds is not None:
                lease = timedelta(seconds=self._config.lease_seconds)
                # An idle worker looks for the jobs of a dead one once every dequeue_timeout.
                options = {"heartbeat_timeout": lease, "dequeue_timeout": lease}
            await queue.run(batch_size=self._config.batch_size, **options)
