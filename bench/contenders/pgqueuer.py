"""PgQueuer: a job queue on PostgreSQL, with the event's id as dedupe_key.

Set up as its guide to performance says: asyncpg, its autovacuum settings, a pool for the producers,
one connection for the queue manager, and a larger batch for short jobs. The database skips repeated
ids (on_conflict="skip").
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
from bench.contenders.empty import run
from bench.contenders.interface import Place
from bench.contenders.recipe import application
from bench.deliveries import body, random_ids
from bench.effects import ASYNCPG_STATEMENTS, asyncpg_parameters, make_tables

ENTRYPOINT = "payment"
FILL_BATCH = 1_000


class Program:
    """Its queries in front, its queue manager behind."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def prepare(self) -> None:
        """Install its schema."""
        asyncio.run(self._install())
        make_tables(self._place.database)

    def serve(self) -> None:
        """Receive until killed."""
        kept: dict[str, Queries] = {}

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with make_pool(self._place.database) as pool:
                kept["queries"] = Queries(AsyncpgPoolDriver(pool))
                yield

        async def keep(event: dict[str, Any], content: bytes) -> None:
            await kept["queries"].enqueue(
                ENTRYPOINT, content, dedupe_key=event["id"], on_conflict="skip"
            )

        run(application(keep, lifespan), self._place.port)

    def work(self) -> None:
        """Work until killed."""
        uvloop.run(self._work())

    def fill(self, count: int) -> None:
        """Enqueue in batches."""
        asyncio.run(self._fill(count))

    def received(self) -> set[str]:
        """The ids in the bodies that wait; the worker is off while this is asked."""
        with psycopg.connect(self._place.database) as connection:
            rows = connection.execute("SELECT dedupe_key FROM pgqueuer")
            return {key for (key,) in rows}

    async def _install(self) -> None:
        async with make_pool(self._place.database) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))
            await queries.install()
            await queries.optimize_autovacuum()

    async def _fill(self, count: int) -> None:
        ids = random_ids(count, count)
        bodies = [body(event_id, number) for number, event_id in enumerate(ids)]
        async with make_pool(self._place.database) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))
            for first in range(0, count, FILL_BATCH):
                part = slice(first, first + FILL_BATCH)
                size = len(ids[part])
                await queries.enqueue(
                    [ENTRYPOINT] * size, bodies[part], [0] * size, dedupe_key=ids[part]
                )

    async def _work(self) -> None:
        async with make_pool(self._place.database) as pool:
            connection = await asyncpg.connect(self._place.database)
            queue = PgQueuer.from_asyncpg_connection(connection)
            workload = self._place.workload
            statement = ASYNCPG_STATEMENTS[workload]

            @queue.entrypoint(ENTRYPOINT)
            async def handle(job: Job) -> None:
                event = json.loads(job.payload)
                await pool.execute(statement, *asyncpg_parameters(workload, event))

            options = {}
            if self._place.lease_seconds is not None:
                lease = timedelta(seconds=self._place.lease_seconds)
                # An idle worker looks for what others left behind only so often.
                options = {"heartbeat_timeout": lease, "dequeue_timeout": lease}
            await queue.run(batch_size=self._place.batch_size, **options)
