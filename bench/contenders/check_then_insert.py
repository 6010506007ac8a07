"""A common first version: SELECT the id, then INSERT the event."""

from typing import Any

from psycopg.errors import UniqueViolation

from bench.contenders import handwritten_psycopg
from bench.contenders.endpoint import StoreEvent

EXISTS = "SELECT 1 FROM events WHERE id = %s"
INSERT = "INSERT INTO events (id, type, body) VALUES (%s, %s, %s)"


class Program(handwritten_psycopg.Program):
    """The hand-written inbox with two statements instead of one."""

    def _store_event(self, pool: Any) -> StoreEvent:
        async def store(event: dict[str, Any], body: bytes) -> None:
            async with pool.connection() as connection:
                cursor = await connection.execute(EXISTS, (event["id"],))
                if await cursor.fetchone():
                    return
                try:
                    await connection.execute(INSERT, (event["id"], event["type"], body))
                except UniqueViolation:  # another request inserted the id after the check
                    return

        return store
