"""The asyncpg pool of the contenders that use asyncpg."""

from typing import Any

import asyncpg

from bench.contenders.recipe import POOL_CONNECTIONS


def make_pool(database: str) -> Any:
    """Return a pool, to be opened, that returns connections without a reset query.

    asyncpg resets the session by default, which costs a round trip for every statement here.
    These programs change no session state, and psycopg's pool sends no such query either.
    """
    return asyncpg.create_pool(
        database, min_size=POOL_CONNECTIONS, max_size=POOL_CONNECTIONS, reset=_keep_session
    )


async def _keep_session(_: Any) -> None:
    """Reset nothing."""
