"""Hand-written SKIP LOCKED loops, half of them for each of two handlers.

The events of one handler never wait for those of the other, and its idle loops do not help.
"""

import asyncio

import psycopg

from bench.contenders import neighbours_loop
from bench.contenders.interface import ContenderConfig
from bench.deliveries import EVENT_TYPE
from bench.neighbours import EVENT_TYPE as NEIGHBOUR_TYPE

ADD_INDEX = "CREATE INDEX events_queued_by_type ON events (type, number) WHERE done_at IS NULL"
CLAIM = """
UPDATE events SET done_at = clock_timestamp() WHERE number = ANY(ARRAY(
    SELECT number FROM events WHERE done_at IS NULL AND type = %s
    ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED
))
RETURNING number, type, body
"""


class Program(neighbours_loop.Program):
    """The table of neighbours_loop, with loops for each type of event."""

    def create_tables(self) -> None:
        """Create the tables, with an index for claims by type."""
        super().create_tables()
        with psycopg.connect(self._config.database, autocommit=True) as connection:
            connection.execute(ADD_INDEX)

    async def _work(self) -> None:
        half = self._config.with_changes(concurrency=self._config.concurrency // 2)
        async with asyncio.TaskGroup() as tasks:
            for event_type in (EVENT_TYPE, NEIGHBOUR_TYPE):
                tasks.create_task(_TypeLoops(half, event_type).run())


class _TypeLoops(neighbours_loop.Program):
    """The loops for one type of event."""

    def __init__(self, config: ContenderConfig, event_type: str) -> None:
        super().__init__(config)
        self._claim = CLAIM, (event_type,)

    async def run(self) -> None:
        """Run the loops until killed."""
        await self._work()
