"""A connection with the fast wait runs, cancels and loses statements as psycopg's own does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg.abc import PQGen

from onceward.model.events import Outcome
from onceward.store.postgres import waiting
from onceward.store.postgres.connections import Connection, connect, is_closed_by_server
from onceward.store.postgres.session import Session
from onceward.store.postgres.waiting import FastWaitConnection
from support.database import RawDatabase
from tests.factories import arrival, lease, opened, record, working

SESSION = Session()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[FastWaitConnection]:
    opened_connection = await connect(postgres_url, FastWaitConnection, SESSION)
    assert isinstance(opened_connection, FastWaitConnection)
    yield opened_connection
    await opened_connection.close()


async def value(connection: Connection, sql: str, **parameters: Any) -> Any:
    cursor = await connection.execute(sql, parameters)
    row = await cursor.fetchone()
    assert row is not None
    return next(iter(row.values()))


async def test_statements_run_one_after_the_other(connection: Connection) -> None:
    for number in range(50):
        assert await value(connection, "SELECT %(number)s", number=number) == number
    assert await value(connection, "SELECT 7 FROM pg_sleep(0.05)") == 7


async def test_a_statement_larger_than_the_socket_buffer_is_sent_whole(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_INTERVAL_SECONDS", 60)  # so that only the loop can wake it
    large = "x" * 20_000_000
    async with asyncio.timeout(10):
        assert await value(connection, "SELECT length(%(text)s)", text=large) == len(large)
        assert await value(connection, "SELECT repeat('x', 20000000)") == large


async def test_a_cancelled_statement_ends_in_the_server_too(
    connection: Connection, postgres_url: str
) -> None:
    sleeping = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0.1)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(sleeping, 5)
    running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
    assert RawDatabase(postgres_url).value(f"{running} AND state = 'active'") == 0
    assert await value(connection, "SELECT 1") == 1, "the connection can still be used"


@pytest.mark.parametrize("statement", ["SELECT pg_sleep(60)", None])
async def test_a_connection_that_the_server_closes_is_noticed(
    postgres_url: str, statement: str | None
) -> None:
    closed = await connect(postgres_url, FastWaitConnection, SESSION)
    pid = await value(closed, "SELECT pg_backend_pid()")
    running = asyncio.create_task(closed.execute(statement)) if statement else None
    await asyncio.sleep(0.05)
    RawDatabase(postgres_url).rows(f"SELECT pg_terminate_backend({pid})")
    if running is not None:
        with pytest.raises(psycopg.OperationalError):
            await asyncio.wait_for(running, 5)
    else:
        await asyncio.sleep(0.1)
        assert is_closed_by_server(closed)
    await closed.close()
    # The system may give the next connection the same file descriptor.
    following = await connect(postgres_url, FastWaitConnection, SESSION)
    assert await asyncio.wait_for(value(following, "SELECT 1"), 5) == 1
    await following.close()


async def test_a_result_that_the_event_loop_does_not_report_is_read(
    connection: FastWaitConnection,
) -> None:
    statement = asyncio.create_task(value(connection, "SELECT 7 FROM pg_sleep(0.3)"))
    await asyncio.sleep(0.05)
    asyncio.get_running_loop().remove_reader(connection.fileno())
    assert await asyncio.wait_for(statement, 5) == 7


async def test_an_idle_connection_does_not_keep_the_loop_busy(
    connection: FastWaitConnection,
) -> None:
    assert await value(connection, "SELECT 1") == 1
    assert connection._loop is not None
    await asyncio.sleep(0.3)
    registered: list[object] = [connection._loop, connection._timer]
    assert registered == [None, None]
    assert await value(connection, "SELECT 1") == 1


@pytest.mark.parametrize("fast_wait", [True, False])
async def test_every_connection_of_a_store_obeys_the_setting(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, *, fast_wait: bool
) -> None:
    waiting_connections: set[int] = set()
    wait = FastWaitConnection.wait

    async def noted_wait(self: FastWaitConnection, gen: PQGen[Any], *args: Any) -> Any:
        waiting_connections.add(id(self))
        return await wait(self, gen, *args)

    monkeypatch.setattr(FastWaitConnection, "wait", noted_wait)
    async with opened(postgres_url, driver_fast_wait=fast_wait) as store:
        await record(store, arrival())
        leased = await lease(store)
        assert (await store.renew([leased.token], 60.0)).held == {leased.token}
        async with working(store) as work:
            assert await work.tx.fetch_value("SELECT 1") == 1
        await store.make_partitions()
    # A writer, the claims, the renewals, the notifications, the operator's, the maintenance's and
    # one of the pool.
    assert len(waiting_connections) == (8 if fast_wait else 0)


@pytest.mark.parametrize("fast_wait", [True, False])
async def test_a_connection_is_dropped_without_an_await(
    postgres_url: str, *, fast_wait: bool
) -> None:
    """The pool relies on it: a cancellation cannot interrupt what never suspends."""
    async with opened(postgres_url, driver_fast_wait=fast_wait) as store:
        async with store._writers.use() as connection:  # type: ignore[attr-defined]
            statement = asyncio.create_task(connection.execute("SELECT pg_sleep(0.2)"))
            await asyncio.sleep(0.05)
            statement.cancel()
            await asyncio.wait({statement})
            with pytest.raises(StopIteration):
                connection.close().send(None)
            assert connection.closed
        (receipt,) = await record(store, arrival())
    assert receipt.outcome is Outcome.RECORDED
