"""The connection pool of the contenders on asyncpg."""

from typing import Any

import asyncpg

from bench.contenders.endpoint import POOL_CONNECTIONS


def make_pool(database: str) -> Any:
    """Return a closed pool that skips asyncpg's reset query.

    The query would cost a round trip a statement. These programs change no session state, and
    psycopg's pool sends no such query either.
    """
    return asyncpg.create_pool(
        database, min_size=POOL_CONNECTIONS, max_size=POOL_CONNECTIONS, reset=_skip_reset
    )


async def _skip_reset(_: Any) -> None:
    pass
