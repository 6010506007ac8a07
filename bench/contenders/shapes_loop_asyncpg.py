"""The hand-written SKIP LOCKED loop on asyncpg, with each async handler of `shapes_loop`."""

import asyncio
from typing import Any

from bench.contenders import handwritten_asyncpg, shapes_loop
from bench.contenders.handwritten_psycopg import Handle
from bench.shapes import EFFECTS, effect_key
from bench.workloads import ASYNCPG_STATEMENTS, INSERT, asyncpg_parameters, begin_job

MARK_EFFECT = shapes_loop.MARK_EFFECT.replace("%s", "$1")
BOOK = ASYNCPG_STATEMENTS[INSERT]


class Program(handwritten_asyncpg.Program):
    """The loop of handwritten_asyncpg, with the handler that the config names."""

    def create_tables(self) -> None:
        """Create the tables, with one for the keys of effects."""
        shapes_loop.Program(self._config).create_tables()

    def _make_handler(self, connection: Any) -> Handle:
        async def book(event: dict[str, Any]) -> None:
            if self._config.job_seconds:
                await asyncio.sleep(begin_job(self._config))
            await connection.execute(BOOK, *asyncpg_parameters(INSERT, event))

        async def book_once(event: dict[str, Any]) -> None:
            if await connection.fetchrow(MARK_EFFECT, effect_key(event["id"])):
                await connection.execute(BOOK, *asyncpg_parameters(INSERT, event))

        return book_once if self._config.shape == EFFECTS else book
