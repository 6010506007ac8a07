"""No queue: the endpoint stores the event and runs the handler in one transaction, then responds.

A handler that fails or takes long is the sender's problem, who has to send the event again.
"""

from typing import Any

from bench.contenders import handwritten_psycopg
from bench.contenders.endpoint import StoreEvent
from bench.workloads import PSYCOPG_STATEMENTS, parameters

INSERT_DONE = """
INSERT INTO events (id, type, body, done_at) VALUES (%s, %s, %s, clock_timestamp())
ON CONFLICT (id) DO NOTHING RETURNING number
"""


class Program(handwritten_psycopg.Program):
    """The hand-written inbox without a worker."""

    def _store_event(self, pool: Any) -> StoreEvent:
        statement = PSYCOPG_STATEMENTS[self._config.workload]

        async def store_and_handle(event: dict[str, Any], body: bytes) -> None:
            async with pool.connection() as connection, connection.transaction():
                values = event["id"], event["type"], body
                stored = await connection.execute(INSERT_DONE, values)
                if await stored.fetchone():
                    await connection.execute(statement, parameters(event))

        return store_and_handle
