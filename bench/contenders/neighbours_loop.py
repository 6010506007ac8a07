"""A hand-written SKIP LOCKED loop that runs the events of two handlers in the order of their ids.

An event whose handler raises is tried again at once, and failed after some attempts.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from bench.contenders import handwritten_psycopg
from bench.contenders.handwritten_psycopg import RunBatch
from bench.deliveries import make_body, random_ids
from bench.neighbours import EVENT_TYPE, MAX_ATTEMPTS, NeighbourFailed, run_neighbour
from bench.workloads import PSYCOPG_STATEMENTS, parameters

ADD_ATTEMPTS = "ALTER TABLE events ADD COLUMN attempts integer NOT NULL DEFAULT 0"
CLAIM = """
UPDATE events SET done_at = clock_timestamp() WHERE number = ANY(ARRAY(
    SELECT number FROM events WHERE done_at IS NULL
    ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED
))
RETURNING number, type, body
"""
# The claim has marked the event as done; one with attempts left loses the mark.
COUNT_ATTEMPT = f"""
UPDATE events
SET attempts = attempts + 1,
    done_at = CASE WHEN attempts + 1 >= {MAX_ATTEMPTS} THEN clock_timestamp() END
WHERE number = %s
"""


class Program(handwritten_psycopg.Program):
    """The loop of handwritten_psycopg, with a second handler and with attempts."""

    _claim: tuple[str, Sequence[str]] = (CLAIM, ())
    """The statement that claims an event, and its parameters."""

    def create_tables(self) -> None:
        """Create the tables, with a column for the attempts."""
        super().create_tables()
        with psycopg.connect(self._config.database, autocommit=True) as connection:
            connection.execute(ADD_ATTEMPTS)

    def enqueue(self, count: int) -> None:
        """Queue events of the neighbour with COPY."""
        with psycopg.connect(self._config.database) as connection:
            copy_in = "COPY events (id, type, body) FROM STDIN"
            with connection.cursor().copy(copy_in) as copy:
                for row in _events(count):
                    copy.write_row(row)

    async def _connect(self) -> RunBatch:
        connection = await psycopg.AsyncConnection.connect(self._config.database, autocommit=True)

        async def handle(event_type: str, body: bytes) -> None:
            if event_type == EVENT_TYPE:
                await run_neighbour(self._config.neighbour)
                return
            statement = PSYCOPG_STATEMENTS[self._config.workload]
            await connection.execute(statement, parameters(json.loads(body)))

        async def run_one(_: int) -> int:
            async with connection.transaction():
                row = await (await connection.execute(*self._claim)).fetchone()
                if row is None:
                    return 0
                number, event_type, body = row
                try:
                    await handle(event_type, body)
                except NeighbourFailed:
                    await connection.execute(COUNT_ATTEMPT, (number,))
            return 1

        return run_one


def _events(count: int) -> Iterator[tuple[Any, ...]]:
    for number, event_id in enumerate(random_ids(count, seed=count)):
        yield event_id, EVENT_TYPE, make_body(event_id, number)
