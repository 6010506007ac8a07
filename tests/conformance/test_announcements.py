"""An idle worker is notified when jobs may have become due, in any process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from onceward.errors import StoreUnavailable
from onceward.model.admin import Pausable
from onceward.model.inline import InlineRun
from onceward.ports import Store
from onceward.store.postgres import listener
from onceward.store.postgres.announcer import Announcer
from onceward.store.postgres.connections import Connection, connect, conninfo
from onceward.store.postgres.listener import listen
from onceward.store.postgres.session import Session, SessionConnection
from support.database import RawDatabase
from support.processes import eventually_async
from support.proxy import Mode, Proxy
from tests.factories import (
    ACT,
    arrival,
    failed_job,
    inline_failure,
    leased_job,
    make_store,
    opened,
    processing,
    record,
)


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[asyncio.Event]:
    """Yield an event that each later announcement sets."""
    announced = asyncio.Event()

    async def listen() -> None:
        async with aclosing(store.announcements()) as announcements:
            async for _ in announcements:
                announced.set()

    listener = asyncio.create_task(listen())
    await asyncio.wait_for(announced.wait(), 2.0)  # the first announcement stands for missed ones
    await asyncio.sleep(0.05)
    announced.clear()
    yield announced
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)


async def test_a_recorded_event_is_announced(store: Store) -> None:
    async with listening(store) as announced:
        await record(store, arrival())
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_job_that_a_request_leaves_to_other_processes_is_announced(store: Store) -> None:
    async with listening(store) as announced:
        async with processing(store, arrival()) as transaction:
            await transaction.settle_inline([arrival()], [])
            await transaction.commit()
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_job_that_a_failed_request_leaves_to_other_processes_is_announced(
    store: Store,
) -> None:
    failure = inline_failure(InlineRun(0, "elsewhere", -7))
    async with listening(store) as announced:
        await store.fail_inline([arrival()], [failure], "host:1")
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_requeue_is_announced(store: Store) -> None:
    job = await failed_job(store)
    async with listening(store) as announced:
        await store.requeue(job.id, ACT)
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_cancellation_is_announced(store: Store) -> None:
    _, job = await leased_job(store)
    async with listening(store) as announced:
        await store.cancel(job.id, ACT)
        await asyncio.wait_for(announced.wait(), 2.0)


@pytest.mark.parametrize(("kind", "name"), [("handler", "credit"), ("source", "stripe")])
async def test_a_resume_is_announced(store: Store, kind: str, name: str) -> None:
    await store.pause(Pausable(kind), name, ACT)
    async with listening(store) as announced:
        await store.resume(Pausable(kind), name, ACT)
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_release_is_announced(store: Store) -> None:
    token, job = await leased_job(store)
    async with listening(store) as announced:
        await store.release(token, [job.id])
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_redelivery_is_not_announced(store: Store) -> None:
    await record(store, arrival())
    async with listening(store) as announced:
        await record(store, arrival(), arrival(body=b"other"))
        await asyncio.sleep(0.1)
        assert not announced.is_set()


async def test_only_events_with_jobs_are_announced_to_other_processes(postgres_url: str) -> None:
    async with (
        opened(postgres_url) as receiver,
        opened(postgres_url) as worker,
        listening(worker) as announced,
    ):
        await record(receiver, arrival("unwanted", type="no.handler"))
        await asyncio.sleep(0.1)
        assert not announced.is_set()
        await record(receiver, arrival())
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_lost_connection_is_opened_again(postgres_url: str) -> None:
    async with opened(postgres_url) as store, listening(store) as announced:
        RawDatabase(postgres_url).rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
        await asyncio.wait_for(announced.wait(), 5.0)  # announcements may have been missed
        announced.clear()
        await record(store, arrival())
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_notification_right_after_the_first_announcement_is_not_missed(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, aclosing(store.announcements()) as announcements:
        await anext(announcements)
        RawDatabase(postgres_url).rows("NOTIFY onceward_jobs")
        await asyncio.wait_for(anext(announcements), 2.0)


async def test_an_event_is_announced_that_was_recorded_while_the_last_one_was_claimed(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as store, aclosing(store.announcements()) as announcements:
        for event_id in ("evt_1", "evt_2"):
            await record(store, arrival(event_id))
            await asyncio.wait_for(anext(announcements), 2.0)


async def test_jobs_are_announced_after_their_commit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is woken earlier does not see them, and sleeps until it polls."""
    seen: list[object] = []

    def announce(_: Announcer) -> None:
        seen.append(RawDatabase(postgres_url).rows("SELECT status FROM onceward.jobs"))

    monkeypatch.setattr(Announcer, "announce", announce)
    async with opened(postgres_url) as store:
        job = await failed_job(store)
        await store.requeue(job.id, ACT)
    assert seen == [[("queued",)], [("queued",)]]


async def test_the_last_job_is_announced_before_the_store_is_closed(postgres_url: str) -> None:
    async with opened(postgres_url) as worker, listening(worker) as announced:
        receiver = make_store(postgres_url)
        await receiver.open(serving=True)
        await receiver.register(["stripe"], [], [])
        await record(receiver, arrival())
        await receiver.close()
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_listener_leaves_no_connection_behind(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    listeners = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"

    async def is_gone() -> bool:
        return not raw_db.value(listeners)

    async with opened(postgres_url) as store:
        async with listening(store):
            assert raw_db.value(listeners) == 1
        await eventually_async(is_gone, "the connection is closed")


async def test_a_listener_pauses_before_it_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "RECONNECT_SECONDS", 60.0)
    tries = 0

    async def refuse() -> Connection:
        nonlocal tries
        tries += 1
        raise StoreUnavailable("down")

    waiting = asyncio.create_task(anext(listen(refuse)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (tries, waiting.done()) == (1, False)
    waiting.cancel()


@pytest.mark.parametrize("request_lost", ["LISTEN", "check"])
async def test_a_listener_whose_request_is_lost_connects_again(
    postgres_url: str, request_lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "RESPONSE_SECONDS", 0.2)
    monkeypatch.setattr(listener, "RECONNECT_SECONDS", 0.0)
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.1)
    connections: list[Connection] = []
    with Proxy(postgres_url) as proxy:

        async def open_connection() -> Connection:
            proxy.lose(Mode.FORWARD)
            connection = await connect(conninfo(proxy.url), SessionConnection, Session())
            if request_lost == "LISTEN" and not connections:
                proxy.lose(Mode.HOLD_REQUESTS)
            connections.append(connection)
            return connection

        async with aclosing(listen(open_connection)) as announcements:
            await asyncio.wait_for(anext(announcements), 5.0)
            if request_lost == "check":
                proxy.lose(Mode.HOLD_REQUESTS)
                await asyncio.wait_for(anext(announcements), 5.0)
            assert [connection.closed for connection in connections] == [True, False]
            shown = await (await connections[1].execute("SHOW tcp_user_timeout")).fetchone()
            assert shown == {"tcp_user_timeout": "15000"}  # the server ends a frozen listener
