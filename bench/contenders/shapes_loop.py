"""The hand-written SKIP LOCKED loop with a handler of each shape.

A sync handler runs in threads, each with a connection of its own. A handler that waits does so in
its transaction, because the claim is the row's lock.
"""

import asyncio
import json
import time
from queue import SimpleQueue
from threading import Thread
from typing import Any

import psycopg

from bench.contenders import handwritten_psycopg
from bench.contenders.handwritten_psycopg import CLAIM, IDLE_SECONDS, Handle
from bench.shapes import EFFECTS, SYNC, effect_key
from bench.workloads import INSERT, PSYCOPG_STATEMENTS, begin_job, parameters

EFFECTS_TABLE = """
CREATE TABLE effects (
    key text COLLATE "C" NOT NULL UNIQUE,
    marked_at timestamptz NOT NULL DEFAULT now()
)
"""
MARK_EFFECT = "INSERT INTO effects (key) VALUES (%s) ON CONFLICT (key) DO NOTHING RETURNING key"
BOOK = PSYCOPG_STATEMENTS[INSERT]


class Program(handwritten_psycopg.Program):
    """The loop of handwritten_psycopg, with the handler that the config names."""

    def create_tables(self) -> None:
        """Create the tables, with one for the keys of effects."""
        super().create_tables()
        with psycopg.connect(self._config.database, autocommit=True) as connection:
            connection.execute(EFFECTS_TABLE)

    def work(self) -> None:
        """Run handlers until killed: coroutines, or threads for a sync handler."""
        if self._config.shape == SYNC:
            self._work_in_threads()
        else:
            super().work()

    def _make_handler(self, connection: psycopg.AsyncConnection) -> Handle:
        async def book(event: dict[str, Any]) -> None:
            if self._config.job_seconds:
                await asyncio.sleep(begin_job(self._config))
            await connection.execute(BOOK, parameters(event))

        async def book_once(event: dict[str, Any]) -> None:
            marked = await connection.execute(MARK_EFFECT, (effect_key(event["id"]),))
            if await marked.fetchone():
                await connection.execute(BOOK, parameters(event))

        return book_once if self._config.shape == EFFECTS else book

    # Threads.

    def _work_in_threads(self) -> None:
        """Run a loop in each thread. Raises the first failure of any of them."""
        failures: SimpleQueue[Exception] = SimpleQueue()
        for _ in range(self._config.concurrency):
            Thread(target=self._loop_in_thread, args=(failures,), daemon=True).start()
        raise failures.get()

    def _loop_in_thread(self, failures: "SimpleQueue[Exception]") -> None:
        try:
            with psycopg.connect(self._config.database, autocommit=True) as connection:
                while True:
                    if not _run_one(connection):
                        time.sleep(IDLE_SECONDS)  # polls: a measurement ends before the queue
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            failures.put(error)


def _run_one(connection: psycopg.Connection) -> bool:
    """Run one event in a transaction, and return whether there was one."""
    with connection.transaction():
        row = connection.execute(CLAIM, (1,)).fetchone()
        if row is None:
            return False
        _, body = row
        connection.execute(BOOK, parameters(json.loads(body)))
    return True
