"""Celery with Redis as its broker, and SET NX in the same Redis to deduplicate.

Celery's client is synchronous, so the endpoint publishes from a thread pool. Tasks are acknowledged
late: a task whose worker dies goes to another worker.
"""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import redis
from celery import Celery
from celery.signals import worker_process_init
from redis.asyncio import Redis

from bench.contenders.endpoint import POOL_CONNECTIONS, make_app
from bench.contenders.interface import ContenderConfig
from bench.contenders.server import run_server
from bench.deliveries import make_body, random_ids
from bench.workloads import PSYCOPG_STATEMENTS, begin_job, create_handler_tables, parameters

DEDUPE_SECONDS = 7 * 24 * 3_600
QUEUE = "celery"


class Program:
    """One app, one task, prefork workers."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config
        self._url = f"redis://127.0.0.1:{config.redis_port}/0"
        self._app = Celery("bench", broker=self._url)
        self._app.conf.update(
            broker_connection_retry_on_startup=True,
            broker_pool_limit=POOL_CONNECTIONS,
            task_acks_late=True,
            task_ignore_result=True,
            task_reject_on_worker_lost=True,
            worker_hijack_root_logger=False,
            # Its guide to optimizing recommends a large prefetch for short tasks, and one task a
            # process together with late acknowledgement for long ones.
            worker_prefetch_multiplier=1 if config.job_seconds else 64,
        )
        if config.lease_seconds is not None:
            # By default a worker looks only every hundred seconds for the tasks of a dead one.
            self._app.conf.broker_transport_options = {
                "visibility_timeout": config.lease_seconds,
                "unacked_restore_throttle": 1,
            }
        self._connection: psycopg.Connection | None = None

        @self._app.task(name="payment")
        def handle(body: str) -> None:
            assert self._connection is not None, "opened with the worker process"
            if config.job_seconds:
                time.sleep(begin_job(config))  # the work of the job
            statement = PSYCOPG_STATEMENTS[config.workload]
            self._connection.execute(statement, parameters(json.loads(body)))

        self._task = handle

    def create_tables(self) -> None:
        """Create the handler's tables; Celery has none."""
        create_handler_tables(self._config.database)

    def serve(self) -> None:
        """Receive until killed."""
        client = Redis.from_url(self._url)
        publishers = ThreadPoolExecutor(POOL_CONNECTIONS)

        async def store(event: dict[str, Any], body: bytes) -> None:
            if await client.set(f"event:{event['id']}", 1, nx=True, ex=DEDUPE_SECONDS):
                publish = partial(self._task.apply_async, (body.decode(),), task_id=event["id"])
                await asyncio.get_running_loop().run_in_executor(publishers, publish)

        run_server(make_app(store), self._config.port)

    def work(self) -> None:
        """Run handlers until killed."""
        worker_process_init.connect(self._connect, weak=False)
        self._app.worker_main(
            ["worker", "--concurrency", str(self._config.concurrency), "--loglevel", "ERROR",
             "--hostname", f"{self._config.worker}@%h",
             "--without-gossip", "--without-mingle", "--without-heartbeat"]
        )  # fmt: skip

    def enqueue(self, count: int) -> None:
        """Publish one task after the other over one connection."""
        with self._app.producer_or_acquire() as producer:
            for number, event_id in enumerate(random_ids(count, seed=count)):
                body = make_body(event_id, number).decode()
                self._task.apply_async((body,), task_id=event_id, producer=producer)

    def received_ids(self) -> set[str]:
        """Return the ids of the queued tasks."""
        client = redis.Redis.from_url(self._url)
        messages: Any = client.lrange(QUEUE, 0, -1)
        return {json.loads(message)["headers"]["id"] for message in messages}

    def _connect(self, **_: Any) -> None:
        """Open a connection for each worker process."""
        self._connection = psycopg.connect(self._config.database, autocommit=True)
