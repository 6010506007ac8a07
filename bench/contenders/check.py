"""FastAPI, a SELECT whether the id is known, then an INSERT: what most first versions do."""

from typing import Any

from psycopg.errors import UniqueViolation

from bench.contenders import handwritten
from bench.contenders.recipe import Keep

KNOWN = "SELECT 1 FROM events WHERE id = %s"
INSERT = "INSERT INTO events (id, type, body) VALUES (%s, %s, %s)"


class Program(handwritten.Program):
    """As the hand-written one, with two statements instead of one."""

    def keep(self) -> Keep:
        """Look, then insert; the unique key catches those who looked at the same time."""

        async def keep(event: dict[str, Any], content: bytes) -> None:
            async with self._pool.connection() as connection:
                found = await connection.execute(KNOWN, (event["id"],))
                if await found.fetchone():
                    return
                try:
                    await connection.execute(INSERT, (event["id"], event["type"], content))
                except UniqueViolation:
                    return

        return keep
