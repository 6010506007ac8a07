"""DBOS: durable workflows on PostgreSQL or SQLite, with the event's id as the workflow id.

Set up as its documentation says for an API server beside workers: DBOSClient enqueues, and a DBOS
process on the same system database dequeues. The handler is a datasource transaction, which its
documentation names for effects that must happen exactly once.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import sqlalchemy
from dbos import DBOS, DBOSClient, EnqueueOptions, SQLAlchemyDatasource
from fastapi import FastAPI

from bench.contenders.endpoint import POOL_CONNECTIONS, make_app
from bench.contenders.interface import ContenderConfig
from bench.contenders.server import run_server
from bench.deliveries import make_body, random_ids
from bench.workloads import STATEMENTS, begin_job, create_handler_tables, is_sqlite, parameters

NAME = "bench"
QUEUE = "payments"
WORKFLOW = "payment"
VERSION = "1"
# Ten times the default rate, for a lower latency.
POLLING_SECONDS = 0.1
# Faster here than 8 or 64 threads, and than its async datasource.
THREADS = 16


class Program:
    """Its client to receive, its queue to work."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config
        self._url = config.database.replace("postgresql://", "postgresql+psycopg://")

    def create_tables(self) -> None:
        """Launch once, which creates its tables and registers the queue."""
        self._launch()
        DBOS.destroy()
        create_handler_tables(self._config.database)

    def serve(self) -> None:
        """Receive until killed."""
        client = self._client()

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            # Its async methods run in the event loop's default thread pool, which is small.
            pool = ThreadPoolExecutor(POOL_CONNECTIONS)
            asyncio.get_running_loop().set_default_executor(pool)
            yield

        async def store(event: dict[str, Any], body: bytes) -> None:
            await client.enqueue_async(_options(event["id"]), body.decode())

        run_server(make_app(store, lifespan), self._config.port)

    def work(self) -> None:
        """Run handlers until killed."""
        self._launch()
        threading.Event().wait()

    def enqueue(self, count: int) -> None:
        """Enqueue workflows from several threads, because the client has no batches."""
        client = self._client()

        def enqueue(number: int, event_id: str) -> None:
            client.enqueue(_options(event_id), make_body(event_id, number).decode())

        with ThreadPoolExecutor(POOL_CONNECTIONS) as threads:
            list(threads.map(enqueue, range(count), random_ids(count, seed=count)))
        client.destroy()

    def received_ids(self) -> set[str]:
        """Return the ids of all workflows, in any state."""
        with psycopg.connect(self._config.database) as connection:
            rows = connection.execute("SELECT workflow_uuid FROM dbos.workflow_status")
            return {workflow for (workflow,) in rows}

    def _client(self) -> DBOSClient:
        return DBOSClient(system_database_url=self._url, system_database_pool_size=POOL_CONNECTIONS)

    def _launch(self) -> None:
        DBOS(
            config={
                "name": NAME,
                "system_database_url": self._url,
                "sys_db_pool_size": POOL_CONNECTIONS,
                "application_version": VERSION,
                "executor_id": self._config.worker,
                "max_executor_threads": THREADS,
                "log_level": "WARNING",
            }
        )
        source = SQLAlchemyDatasource.create(
            self._url, engine_kwargs={"pool_size": POOL_CONNECTIONS}
        )
        statement = sqlalchemy.text(STATEMENTS[self._config.workload])
        # The level that the others use. SQLite has only one.
        level = "SERIALIZABLE" if is_sqlite(self._url) else "READ COMMITTED"

        @source.transaction(isolation_level=level)
        def book(body: str) -> None:
            source.sql_session().execute(statement, parameters(json.loads(body)))

        @DBOS.workflow(name=WORKFLOW)
        def payment(body: str) -> None:
            if self._config.job_seconds:
                time.sleep(begin_job(self._config))  # the work of the job
            book(body)

        DBOS.launch()
        DBOS.register_queue(QUEUE, polling_interval_sec=POLLING_SECONDS)


def _options(event_id: str) -> EnqueueOptions:
    return {
        "queue_name": QUEUE,
        "workflow_name": WORKFLOW,
        "workflow_id": event_id,
        "app_version": VERSION,
    }
