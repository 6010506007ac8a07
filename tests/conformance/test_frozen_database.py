"""PostgreSQL alone: a database host that vanishes with statements in flight, and comes back."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import psycopg
import pytest

from onceward.errors import OutcomeUnknown, StoreError, StoreUnavailable
from onceward.model.events import Outcome
from onceward.model.jobs import Postpone
from onceward.ports import Store
from onceward.runtime.sql_text import parse
from onceward.store.postgres import listener, pool, store, transaction
from onceward.store.postgres.connections import conninfo
from onceward.store.postgres.store import PostgresStore
from onceward.store.postgres.time_limit import LOCK_SECONDS, RESPONSE_SECONDS, STATEMENT_SECONDS
from support.database import RawDatabase
from support.proxy import Proxy
from tests.factories import (
    EVERYTHING,
    arrival,
    claim,
    leased_job,
    opened,
    record,
    working,
)

LIMIT_SECONDS = 1.0
SLACK_SECONDS = 5.0
"""For a busy machine. Without the limits, every call here would hang."""


@pytest.fixture
def proxy(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    for module in (listener, store, transaction):
        monkeypatch.setattr(module, "RESPONSE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(store, "ADMIN_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(pool, "OPEN_SECONDS", LIMIT_SECONDS)
    with Proxy(postgres_url) as running:
        yield running


@pytest.fixture(params=[True, False], ids=["fast wait", "psycopg's wait"])
async def frozen_soon(request: pytest.FixtureRequest, proxy: Proxy) -> AsyncIterator[Store]:
    """Open a store behind the proxy."""
    async with opened(proxy.url, driver_fast_wait=request.param) as opened_store:
        yield opened_store


async def fails_in_time(call: Awaitable[object]) -> StoreError:
    with pytest.raises(StoreError) as raised:
        async with asyncio.timeout(2 * LIMIT_SECONDS + SLACK_SECONDS):
            await call
    return raised.value


async def test_every_call_ends_while_the_host_is_frozen_and_works_when_it_is_back(
    frozen_soon: Store, proxy: Proxy
) -> None:
    token, job = await leased_job(frozen_soon)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: record(frozen_soon, arrival("evt_2")),
        lambda: claim(frozen_soon),
        lambda: frozen_soon.renew([token], 60.0),
        lambda: frozen_soon.settle_error(token, job.id, Postpone(0.0, "away"), 0.1),
        lambda: frozen_soon.register(["stripe"], [], []),
        frozen_soon.ready,
    ]
    for call in calls[1:4]:
        await call()  # each has its connection open
    proxy.freeze()
    errors = await asyncio.gather(*(fails_in_time(call()) for call in calls))
    assert type(errors[0]) is OutcomeUnknown, "the event may be recorded: its sender gets 503"
    assert str(errors[0]) == "PostgreSQL did not respond within 1 s; the connection was dropped"
    assert type(await fails_in_time(record(frozen_soon, arrival("evt_3")))) is StoreUnavailable
    proxy.cut()  # what was on its way is lost with the host
    proxy.thaw()
    await asyncio.wait_for(frozen_soon.ready(), SLACK_SECONDS)
    (receipt,) = await asyncio.wait_for(record(frozen_soon, arrival("evt_2")), SLACK_SECONDS)
    assert receipt.outcome is Outcome.RECORDED
    for call in calls[1:]:
        await asyncio.wait_for(call(), SLACK_SECONDS)


async def test_a_transaction_ends_while_the_host_is_frozen(
    frozen_soon: Store, proxy: Proxy, postgres_url: str
) -> None:
    """The settlement and the commit are one message, so that its outcome is unknown."""
    RawDatabase(postgres_url).rows("CREATE TABLE notes (id integer)")
    token, job = await leased_job(frozen_soon)
    async with working(frozen_soon) as work:
        await work.tx.execute("INSERT INTO notes VALUES (1)")
        proxy.freeze()
        error = await fails_in_time(work.unit.settle(token, job.id))
    assert type(error) is OutcomeUnknown
    assert type(await fails_in_time(frozen_soon.settle_done(token, job.id))) is StoreUnavailable
    proxy.cut()
    proxy.thaw()
    assert await frozen_soon.settle_done(token, job.id)
    assert RawDatabase(postgres_url).count("notes") == 0


async def test_a_commit_ends_while_the_host_is_frozen(frozen_soon: Store, proxy: Proxy) -> None:
    async with frozen_soon.begin(str) as transaction:
        await transaction.run(parse("SELECT 1")[0], {})
        proxy.freeze()
        error = await fails_in_time(transaction.commit())
    assert type(error) is OutcomeUnknown


async def test_a_rollback_ends_while_the_host_is_frozen(frozen_soon: Store, proxy: Proxy) -> None:
    async with asyncio.timeout(LIMIT_SECONDS + SLACK_SECONDS):
        async with frozen_soon.begin(str) as transaction:
            await transaction.run(parse("SELECT 1")[0], {})
            proxy.freeze()


async def test_a_transaction_does_not_begin_while_the_host_is_frozen(
    frozen_soon: Store, proxy: Proxy
) -> None:
    async with working(frozen_soon) as work:
        await work.tx.execute("SELECT 1")
    proxy.freeze()
    async with working(frozen_soon) as work:
        error = await fails_in_time(work.tx.execute("SELECT 1"))
    assert type(error) is StoreUnavailable


async def test_a_read_ends_while_the_host_is_frozen(frozen_soon: Store, proxy: Proxy) -> None:
    assert await frozen_soon.events(EVERYTHING) == []
    proxy.freeze()
    assert type(await fails_in_time(frozen_soon.events(EVERYTHING))) is StoreUnavailable


async def test_a_cancelled_statement_does_not_wait_for_a_frozen_host(
    proxy: Proxy,
) -> None:
    async with opened(proxy.url) as frozen_soon:
        async with working(frozen_soon) as work:
            await work.tx.execute("SELECT 1")
            proxy.freeze()
            statement = asyncio.create_task(work.tx.execute("SELECT 2"))
            await asyncio.sleep(0.05)
            started = time.monotonic()
            statement.cancel()
            await asyncio.wait({statement})
        assert time.monotonic() - started < 4 + SLACK_SECONDS
        proxy.thaw()
        async with working(frozen_soon) as work:
            assert await work.tx.fetch_value("SELECT 3") == 3


@pytest.mark.parametrize("stuck", range(1, PostgresStore.max_writers + 1))
async def test_a_store_with_a_stuck_connection_is_not_ready(proxy: Proxy, stuck: int) -> None:
    async with opened(proxy.url, commit_timeout_seconds=0.1) as frozen_soon:
        await record(frozen_soon, arrival())
        proxy.freeze()
        recordings = [
            asyncio.create_task(fails_in_time(record(frozen_soon, arrival(f"evt_{number}"))))
            for number in range(stuck)
        ]
        await asyncio.sleep(0.2)
        with pytest.raises(StoreUnavailable, match="PostgreSQL has not responded for 0"):
            await frozen_soon.ready()
        await asyncio.gather(*recordings)
        proxy.thaw()
        await frozen_soon.ready()


async def test_a_store_that_waits_for_new_connections_is_not_ready(proxy: Proxy) -> None:
    """The waits have only just begun, but the uses before them failed."""
    async with opened(proxy.url) as frozen_soon:
        await record(frozen_soon, arrival())
        proxy.freeze()
        await fails_in_time(record(frozen_soon, arrival("evt_2")))
        recordings = [
            asyncio.create_task(fails_in_time(record(frozen_soon, arrival(f"evt_{number}"))))
            for number in range(frozen_soon.max_writers)
        ]
        await asyncio.sleep(0.05)
        with pytest.raises(StoreUnavailable, match=r"did not respond|no connection"):
            await frozen_soon.ready()
        await asyncio.gather(*recordings)
        proxy.cut()
        proxy.thaw()
        await frozen_soon.ready()


async def test_a_store_whose_connections_are_all_busy_is_ready(postgres_url: str) -> None:
    async with opened(postgres_url) as busy_store:
        with RawDatabase(postgres_url).connection() as connection:
            connection.execute("LOCK onceward.payloads IN EXCLUSIVE MODE")
            recordings = [
                asyncio.create_task(record(busy_store, arrival(f"evt_{number}")))
                for number in range(busy_store.max_writers)
            ]
            await asyncio.sleep(0.05)
            await busy_store.ready()
        await asyncio.gather(*recordings)


async def test_a_listener_notices_that_its_host_is_frozen(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.1)
    async with opened(proxy.url) as frozen_soon:
        announcements = frozen_soon.announcements()
        await asyncio.wait_for(anext(announcements), SLACK_SECONDS)
        proxy.freeze()
        following = asyncio.create_task(anext(announcements))
        await asyncio.sleep(2 * LIMIT_SECONDS)
        assert not following.done()
        proxy.thaw()
        await asyncio.wait_for(following, 2 + SLACK_SECONDS)
        await announcements.aclose()


async def test_closing_ends_statements_to_which_nobody_responds(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RESPONSE_SECONDS", 60.0)  # closing must not wait for the limit
    async with opened(proxy.url) as frozen_soon:
        await record(frozen_soon, arrival())
        proxy.freeze()
        recording = asyncio.create_task(record(frozen_soon, arrival("evt_2")))
        await asyncio.sleep(0.05)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(recording, SLACK_SECONDS)


async def test_the_server_cancels_a_slow_statement_before_the_connection_is_dropped(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each retry would leave one more statement behind in a slow server."""
    assert RESPONSE_SECONDS > STATEMENT_SECONDS > LOCK_SECONDS
    monkeypatch.setattr(store, "OWN_LIMITS", {"statement_timeout": "200"})
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as slow_store:
        with raw_db.connection() as connection:
            connection.execute("LOCK onceward.payloads IN EXCLUSIVE MODE")
            with pytest.raises(OutcomeUnknown, match="PostgreSQL took over 10 s for a statement"):
                await record(slow_store, arrival())
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            assert raw_db.value(f"{waiting} AND datname = current_database()") == 0
        (receipt,) = await record(slow_store, arrival())
    assert receipt.outcome is Outcome.RECORDED


async def test_every_connection_notices_a_vanished_host_by_the_network_alone(
    postgres_url: str,
) -> None:
    connection = await psycopg.AsyncConnection.connect(conninfo(postgres_url))
    options = connection.info.get_parameters()
    await connection.close()
    expected = {
        "connect_timeout": "5",
        "keepalives": "1",
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": "10000",
    }
    assert expected.items() <= options.items()
    own = conninfo(f"{postgres_url}?keepalives_idle=60")
    assert "keepalives_idle=60" in own
