"""Celery with Redis as its broker, and SET NX in the same Redis to deduplicate.

Celery's client is synchronous, so the endpoint publishes from a thread pool. Tasks are acknowledged
late: a task whose worker dies goes to another worker.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import redis
from celery import Celery
from celery.signals import worker_process_init
from redis.asyncio import Redis

from bench.contenders.empty import run
from bench.contenders.interface import Place
from bench.contenders.recipe import POOL_CONNECTIONS, application
from bench.deliveries import body, random_ids
from bench.effects import PSYCOPG_STATEMENTS, make_tables, parameters

DEDUPE_SECONDS = 7 * 24 * 3_600
QUEUE = "celery"


class Program:
    """Its app, one task, prefork workers."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._url = f"redis://127.0.0.1:{place.redis_port}/0"
        self._app = Celery("bench", broker=self._url)
        self._app.conf.update(
            broker_pool_limit=POOL_CONNECTIONS,
            task_ignore_result=True,
            task_acks_late=True,
            task_reject_on_worker_lost=True,
            # Short tasks: its guide says to prefetch many.
            worker_prefetch_multiplier=64,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )
        if place.lease_seconds is not None:
            # Without the last, a worker looks only every hundred seconds for what a dead one left.
            self._app.conf.broker_transport_options = {
                "visibility_timeout": place.lease_seconds,
                "unacked_restore_throttle": 1,
            }
        self._connection: psycopg.Connection | None = None

        @self._app.task(name="payment")
        def handle(content: str) -> None:
            assert self._connection is not None, "opened with the process"
            statement = PSYCOPG_STATEMENTS[place.workload]
            self._connection.execute(statement, parameters(json.loads(content)))

        self._task = handle

    def prepare(self) -> None:
        """Only the handler has tables."""
        make_tables(self._place.database)

    def serve(self) -> None:
        """Receive until killed."""
        marks = Redis.from_url(self._url)
        publishers = ThreadPoolExecutor(POOL_CONNECTIONS)

        async def keep(event: dict[str, Any], content: bytes) -> None:
            if await marks.set(f"event:{event['id']}", 1, nx=True, ex=DEDUPE_SECONDS):
                publish = partial(self._task.apply_async, (content.decode(),), task_id=event["id"])
                await asyncio.get_running_loop().run_in_executor(publishers, publish)

        run(application(keep), self._place.port)

    def work(self) -> None:
        """Work until killed."""
        worker_process_init.connect(self._open, weak=False)
        self._app.worker_main(
            ["worker", "--concurrency", str(self._place.concurrency), "--loglevel", "ERROR",
             "--without-gossip", "--without-mingle", "--without-heartbeat"]
        )  # fmt: skip

    def fill(self, count: int) -> None:
        """Publish one after the other, over one connection."""
        with self._app.producer_or_acquire() as producer:
            for number, event_id in enumerate(random_ids(count, count)):
                content = body(event_id, number).decode()
                self._task.apply_async((content,), task_id=event_id, producer=producer)

    def received(self) -> set[str]:
        """The ids of the tasks that wait."""
        client = redis.Redis.from_url(self._url)
        waiting: Any = client.lrange(QUEUE, 0, -1)
        return {json.loads(message)["headers"]["id"] for message in waiting}

    def _open(self, **_: Any) -> None:
        """Each worker process has its own connection."""
        self._connection = psycopg.connect(self._place.database, autocommit=True)
