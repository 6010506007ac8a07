"""FastAPI, a SELECT for the id, then an INSERT: a common first version."""

from typing import Any

from psycopg.errors import UniqueViolation

from bench.contenders import handwritten
from bench.contenders.recipe import Keep

EXISTS = "SELECT 1 FROM events WHERE id = %s"
INSERT = "INSERT INTO events (id, type, body) VALUES (%s, %s, %s)"


class Program(handwritten.Program):
    """The hand-written program with two statements instead of one."""

    def _keep(self, pool: Any) -> Keep:
        """Return the endpoint's write; the unique key catches two checks at the same moment."""

        async def keep(event: dict[str, Any], content: bytes) -> None:
            async with pool.connection() as connection:
                found = await connection.execute(EXISTS, (event["id"],))
                if await found.fetchone():
                    return
                try:
                    await connection.execute(INSERT, (event["id"], event["type"], content))
                except UniqueViolation:
                    return

        return keep
