"""DBOS: durable workflows on PostgreSQL, with the event's id as workflow id.

As its documentation has it for an API server beside the workers: DBOSClient enqueues, a DBOS
process with the same system database dequeues. The handler is a transaction of a datasource,
which its documentation gives for effects that must happen exactly once.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import sqlalchemy
from dbos import DBOS, DBOSClient, EnqueueOptions, SQLAlchemyDatasource
from fastapi import FastAPI

from bench.contenders.empty import run
from bench.contenders.interface import Place
from bench.contenders.recipe import POOL_CONNECTIONS, application
from bench.deliveries import body, random_ids
from bench.effects import STATEMENTS, make_tables, parameters

NAME = "bench"
QUEUE = "payments"
WORKFLOW = "payment"
VERSION = "1"
POLLING_SECONDS = 0.1


class Program:
    """Its client in front, its queue behind."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._url = place.database.replace("postgresql://", "postgresql+psycopg://")

    def prepare(self) -> None:
        """Launch once: that makes its tables and registers the queue."""
        self._launch()
        DBOS.destroy()
        make_tables(self._place.database)

    def serve(self) -> None:
        """Receive until killed."""
        client = self._client()

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            # Its async methods run in the loop's threads, of which there are few by default.
            pool = ThreadPoolExecutor(POOL_CONNECTIONS)
            asyncio.get_running_loop().set_default_executor(pool)
            yield

        async def keep(event: dict[str, Any], content: bytes) -> None:
            await client.enqueue_async(_options(event["id"]), content.decode())

        run(application(keep, lifespan), self._place.port)

    def work(self) -> None:
        """Work until killed."""
        self._launch()
        threading.Event().wait()

    def fill(self, count: int) -> None:
        """Enqueue from several threads: it has no batches."""
        client = self._client()

        def enqueue(number: int, event_id: str) -> None:
            client.enqueue(_options(event_id), body(event_id, number).decode())

        with ThreadPoolExecutor(POOL_CONNECTIONS) as threads:
            list(threads.map(enqueue, range(count), random_ids(count, count)))
        client.destroy()

    def received(self) -> set[str]:
        """The ids of all workflows, in whatever state."""
        with psycopg.connect(self._place.database) as connection:
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
                "executor_id": "worker",
                "max_executor_threads": POOL_CONNECTIONS,
                "log_level": "WARNING",
            }
        )
        source = SQLAlchemyDatasource.create(
            self._url, engine_kwargs={"pool_size": POOL_CONNECTIONS}
        )
        statement = sqlalchemy.text(STATEMENTS[self._place.workload])

        # What the others have; SQLite knows one level only.
        is_sqlite = self._url.startswith("sqlite:")
        level = "SERIALIZABLE" if is_sqlite else "READ COMMITTED"

        @source.transaction(isolation_level=level)
        def book(content: str) -> None:
            source.sql_session().execute(statement, parameters(json.loads(content)))

        @DBOS.workflow(name=WORKFLOW)
        def payment(content: str) -> None:
            book(content)

        DBOS.launch()
        DBOS.register_queue(QUEUE, polling_interval_sec=POLLING_SECONDS)


def _options(event_id: str) -> EnqueueOptions:
    return {
        "queue_name": QUEUE,
        "workflow_name": WORKFLOW,
        "workflow_id": event_id,
        "app_version": VERSION,
    }
