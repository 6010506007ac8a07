"""A connection that keeps its socket with the loop waits, ends and is broken off as any other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from onceward.store.postgres import waiting as postgres_wait
from onceward.store.postgres.connections import connect, is_hung_up
from onceward.store.postgres.waiting import Connection
from support.database import RawDatabase


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[Connection]:
    it = await connect(postgres_url)
    yield it
    await it.close()


async def value(connection: Connection, sql: str, **parameters: Any) -> Any:
    cursor = await connection.execute(sql, parameters)
    row = await cursor.fetchone()
    assert row is not None
    return next(iter(row.values()))


async def test_it_waits_for_one_statement_after_the_other(connection: Connection) -> None:
    for number in range(50):
        assert await value(connection, "SELECT %(number)s", number=number) == number
    assert await value(connection, "SELECT 7 FROM pg_sleep(0.05)") == 7


async def test_what_does_not_fit_into_the_socket_is_sent_all_the_same(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_wait, "_INTERVAL_SECONDS", 60)  # only the loop can tell it
    large = "x" * 20_000_000
    async with asyncio.timeout(10):
        assert await value(connection, "SELECT length(%(text)s)", text=large) == len(large)
        assert await value(connection, "SELECT repeat('x', 20000000)") == large


async def test_a_statement_that_is_broken_off_ends_in_the_server_too(
    connection: Connection, postgres_url: str
) -> None:
    sleeping = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0.1)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(sleeping, 5)
    running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
    assert RawDatabase(postgres_url).value(f"{running} AND state = 'active'") == 0
    assert await value(connection, "SELECT 1") == 1, "and the connection is of use"


async def test_a_server_that_hangs_up_is_noticed_by_who_waits_and_by_who_does_not(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    for statement in ("SELECT pg_sleep(60)", None):
        one = await connect(postgres_url)
        pid = await value(one, "SELECT pg_backend_pid()")
        waiting = asyncio.create_task(one.execute(statement)) if statement else None
        await asyncio.sleep(0.05)
        raw_db.rows(f"SELECT pg_terminate_backend({pid})")
        if waiting is not None:
            with pytest.raises(psycopg.OperationalError):
                await asyncio.wait_for(waiting, 5)
        else:
            await asyncio.sleep(0.1)
            assert is_hung_up(one)
        await one.close()
        # The next one may get the same socket from the system.
        other = await connect(postgres_url)
        assert await asyncio.wait_for(value(other, "SELECT 1"), 5) == 1
        await other.close()


async def test_an_idle_connection_does_not_keep_the_loop_busy(connection: Connection) -> None:
    assert await value(connection, "SELECT 1") == 1
    assert connection._loop is not None
    await asyncio.sleep(0.3)
    found: list[object] = [connection._loop, connection._timer]
    assert found == [None, None]
    assert await value(connection, "SELECT 1") == 1
