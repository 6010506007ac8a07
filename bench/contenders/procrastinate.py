"""procrastinate: a task queue on PostgreSQL, with the event's id as queueing lock.

As its documentation has it for ASGI frameworks: the app is opened with the service, jobs are
deferred asynchronously, the worker runs async tasks concurrently. The job carries the body.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import uvloop
from fastapi import FastAPI
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued

from bench.contenders.empty import run
from bench.contenders.interface import Place
from bench.contenders.recipe import POOL_CONNECTIONS, application, make_pool
from bench.deliveries import body, random_ids
from bench.effects import PSYCOPG_STATEMENTS, make_tables, parameters

FILL_BATCH = 1_000


class Program:
    """Its App, one task, and one worker process."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pool = make_pool(place.database)
        connector = PsycopgConnector(
            conninfo=place.database, min_size=POOL_CONNECTIONS, max_size=POOL_CONNECTIONS
        )
        self._app = App(connector=connector)
        self._task = self._app.task(name="payment")(self._handle)

    def prepare(self) -> None:
        """Apply its schema."""
        uvloop.run(self._apply_schema())
        make_tables(self._place.database)

    def serve(self) -> None:
        """Receive until killed."""

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with self._app.open_async():
                yield

        run(application(self._keep, lifespan), self._place.port)

    def work(self) -> None:
        """Work until killed."""
        uvloop.run(self._work())

    def fill(self, count: int) -> None:
        """Defer in batches."""
        uvloop.run(self._fill(count))

    def received(self) -> set[str]:
        """The queueing locks of all jobs, in whatever state."""
        with psycopg.connect(self._place.database) as connection:
            rows = connection.execute("SELECT queueing_lock FROM procrastinate_jobs")
            return {lock for (lock,) in rows}

    async def _apply_schema(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def _keep(self, event: dict[str, Any], content: bytes) -> None:
        try:
            await self._task.configure(queueing_lock=event["id"]).defer_async(body=content.decode())
        except AlreadyEnqueued:
            return

    async def _fill(self, count: int) -> None:
        jobs = [{"body": body(id_, n).decode()} for n, id_ in enumerate(random_ids(count, count))]
        async with self._app.open_async():
            for first in range(0, count, FILL_BATCH):
                await self._task.batch_defer_async(*jobs[first : first + FILL_BATCH])

    async def _handle(self, body: str) -> None:
        async with self._pool.connection() as connection:
            statement = PSYCOPG_STATEMENTS[self._place.workload]
            await connection.execute(statement, parameters(json.loads(body)))

    async def _work(self) -> None:
        async with self._pool, self._app.open_async():
            options: dict[str, float] = {}
            rescue = None
            if self._place.lease_seconds is not None:
                options["update_heartbeat_interval"] = self._place.lease_seconds / 3
                rescue = asyncio.create_task(self._rescue(self._place.lease_seconds))
            await self._app.run_worker_async(concurrency=self._place.concurrency, **options)
            if rescue:
                rescue.cancel()

    async def _rescue(self, seconds: float) -> None:
        """What its page on stalled jobs has a periodic task do, more often than cron can."""
        while True:
            await asyncio.sleep(seconds / 2)
            jobs = self._app.job_manager
            for job in await jobs.get_stalled_jobs(seconds_since_heartbeat=seconds):
                await jobs.retry_job(job)
