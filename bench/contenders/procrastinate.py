"""procrastinate: a task queue on PostgreSQL, with the event's id as the queueing lock.

Set up as its documentation says for ASGI frameworks: the app opens with the service, jobs are
deferred asynchronously, and the worker runs async tasks concurrently. A job carries the body. A
periodic task retries stalled jobs, as its production guide says.
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

from bench.contenders.endpoint import POOL_CONNECTIONS, make_app, make_pool
from bench.contenders.interface import ContenderConfig
from bench.contenders.server import run_server
from bench.deliveries import make_body, random_ids
from bench.workloads import PSYCOPG_STATEMENTS, begin_job, create_handler_tables, parameters

ENQUEUE_BATCH = 1_000

# Of its production guide: look every ten minutes for the jobs of workers that are silent for 30 s.
RETRY_CRON = "*/10 * * * *"
STALLED_SECONDS = 30.0


class Program:
    """One app, one task, one worker process."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config
        self._pool = make_pool(config.database)
        connector = PsycopgConnector(
            conninfo=config.database, min_size=POOL_CONNECTIONS, max_size=POOL_CONNECTIONS
        )
        self._app = App(connector=connector)
        self._task = self._app.task(name="payment")(self._handle)

    def create_tables(self) -> None:
        """Apply its schema, and create the handler's tables."""
        uvloop.run(self._apply_schema())
        create_handler_tables(self._config.database)

    def serve(self) -> None:
        """Receive until killed."""

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with self._app.open_async():
                yield

        run_server(make_app(self._store, lifespan), self._config.port)

    def work(self) -> None:
        """Run handlers until killed."""
        uvloop.run(self._work())

    def enqueue(self, count: int) -> None:
        """Defer jobs in batches."""
        uvloop.run(self._enqueue(count))

    def received_ids(self) -> set[str]:
        """Return the queueing locks of all jobs, in any state."""
        with psycopg.connect(self._config.database) as connection:
            rows = connection.execute("SELECT queueing_lock FROM procrastinate_jobs")
            return {lock for (lock,) in rows}

    async def _apply_schema(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def _store(self, event: dict[str, Any], body: bytes) -> None:
        try:
            await self._task.configure(queueing_lock=event["id"]).defer_async(body=body.decode())
        except AlreadyEnqueued:
            return

    async def _enqueue(self, count: int) -> None:
        ids = enumerate(random_ids(count, seed=count))
        jobs = [{"body": make_body(event_id, number).decode()} for number, event_id in ids]
        async with self._app.open_async():
            for first in range(0, count, ENQUEUE_BATCH):
                await self._task.batch_defer_async(*jobs[first : first + ENQUEUE_BATCH])

    async def _handle(self, body: str) -> None:
        if self._config.job_seconds:
            await asyncio.sleep(begin_job(self._config))
        async with self._pool.connection() as connection:
            statement = PSYCOPG_STATEMENTS[self._config.workload]
            await connection.execute(statement, parameters(json.loads(body)))

    async def _work(self) -> None:
        options: dict[str, float] = {}
        if (lease_seconds := self._config.lease_seconds) is None:
            self._retry_stalled_jobs(RETRY_CRON, STALLED_SECONDS)
        else:
            options["update_heartbeat_interval"] = lease_seconds / 3
            # The sixth column is for seconds.
            self._retry_stalled_jobs(f"* * * * * */{lease_seconds / 2:.0f}", lease_seconds)
        async with self._pool, self._app.open_async():
            await self._app.run_worker_async(concurrency=self._config.concurrency, **options)

    def _retry_stalled_jobs(self, cron: str, stalled_seconds: float) -> None:
        """Define the periodic task that retries the jobs of silent workers."""

        @self._app.periodic(cron=cron)
        @self._app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs")
        async def retry_stalled_jobs(timestamp: int) -> None:
            del timestamp
            jobs = self._app.job_manager
            for job in await jobs.get_stalled_jobs(seconds_since_heartbeat=stalled_seconds):
                await jobs.retry_job(job)
