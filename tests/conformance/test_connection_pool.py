"""PostgreSQL alone: the pool lends only usable connections, keeps to its limits, and ends."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg
import pytest

from onceward.errors import StoreBlocked, StoreError, StoreUnavailable
from onceward.store.postgres import pool as pool_module
from onceward.store.postgres.connections import Connection, connect, conninfo
from onceward.store.postgres.pool import ConnectionPool
from onceward.store.postgres.session import Session, SessionConnection
from support.proxy import Proxy

PID = "SELECT pg_backend_pid() AS pid"


def make_pool(
    open_connection: Callable[[], Awaitable[Connection]], wait_seconds: float = 10.0
) -> ConnectionPool:
    return ConnectionPool(open_connection, size=1, wait_seconds=wait_seconds, response_seconds=10.0)


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[ConnectionPool]:
    info = conninfo(postgres_url)
    pool = make_pool(lambda: connect(info, SessionConnection, Session()), wait_seconds=0.05)
    yield pool
    pool.close()


async def backend(pool: ConnectionPool, *before: str) -> int:
    """Run statements on a connection of the pool, and return the id of its server process."""
    async with pool.use() as connection:
        row = await (await connection.execute(PID)).fetchone()
        for statement in before:
            await connection.execute(statement.encode())
    assert row is not None
    pid: int = row["pid"]
    return pid


async def test_an_idle_connection_is_lent_again(pool: ConnectionPool) -> None:
    assert await backend(pool) == await backend(pool)


async def test_a_connection_in_a_transaction_is_not_lent_again(pool: ConnectionPool) -> None:
    first = await backend(pool, "BEGIN", "SET LOCAL statement_timeout = '1ms'")
    assert await backend(pool) != first


async def test_a_connection_that_comes_back_after_the_end_is_closed(pool: ConnectionPool) -> None:
    async with pool.use() as connection:
        pool.close()
    assert connection.closed


async def test_closing_ends_the_statements_in_progress(pool: ConnectionPool) -> None:
    async with asyncio.timeout(10):
        async with pool.use() as connection:
            asyncio.get_running_loop().call_later(0.05, pool.close)
            with pytest.raises(psycopg.OperationalError):
                await connection.execute("SELECT pg_sleep(60)")


async def test_a_closed_pool_opens_no_connection(pool: ConnectionPool) -> None:
    pool.close()
    with pytest.raises(StoreUnavailable, match="the store is closed"):
        await backend(pool)


async def test_a_dropped_connection_is_not_kept(pool: ConnectionPool) -> None:
    async with pool.use() as connection:
        dropped = weakref.ref(connection)
        await connection.execute("BEGIN")
    del connection
    gc.collect()
    assert dropped() is None


async def test_a_connection_to_a_standby_is_not_ready_and_is_replaced(
    pool: ConnectionPool,
) -> None:
    await pool.check(10.0)
    await backend(pool, "SET default_transaction_read_only = on")
    with pytest.raises(StoreBlocked, match="The database is read-only"):
        await pool.check(10.0)
    await pool.check(10.0)


async def test_a_check_does_not_take_as_long_as_a_statement_may(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CHECK_SECONDS", 0.05)
    with Proxy(postgres_url) as proxy:
        info = conninfo(proxy.url)
        pool = make_pool(lambda: connect(info, SessionConnection, Session()))
        await pool.check(10.0)
        proxy.freeze()
        with pytest.raises(StoreError, match=r"did not respond within 0\.05 s"):
            await pool.check(10.0)
        pool.close()


async def test_the_wait_for_a_connection_ends(pool: ConnectionPool) -> None:
    async with pool.use():
        with pytest.raises(StoreUnavailable, match=r"stayed in use for 0\.05 s"):
            async with asyncio.timeout(10):
                await backend(pool)
    assert await backend(pool)


async def test_opening_a_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "OPEN_SECONDS", 0.05)
    never: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    pool = make_pool(lambda: never)
    with pytest.raises(StoreUnavailable, match=r"no connection to PostgreSQL within 0\.05 s"):
        async with asyncio.timeout(10):
            await backend(pool)
