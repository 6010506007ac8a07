"""A store call that is cancelled at any of its awaits leaks nothing, on either store."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

import pytest

from onceward.errors import StoreError
from onceward.model.events import Outcome
from onceward.model.jobs import JobStatus, Reschedule
from onceward.ports import Store
from onceward.store.postgres.pool import drop
from onceward.store.postgres.store import PostgresStore
from onceward.store.sqlite.store import SqliteStore
from support.database import RawDatabase
from tests.factories import (
    ACT,
    EVERYTHING,
    HANDLERS,
    SOURCES,
    arrival,
    arrivals,
    claim,
    failed_job,
    make_store,
    opened,
    record,
    working,
)

WORKS_WITHIN_SECONDS = 10.0
MAX_AWAITS = 200
LEFT_OPEN = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (state <> 'idle' OR EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = pg_stat_activity.pid))
    AND application_name = 'onceward'
"""


class CancelAt:
    """Awaits a call, and cancels its own task at the await of a number.

    The cancellation comes before the awaited future is done, or, with `late`, together with its
    result, which is then lost.
    """

    def __init__(self, call: Awaitable[object], number: int, *, late: bool) -> None:
        self._call = call
        self._number = number
        self._late = late
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        steps = self._call.__await__()
        send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            try:
                future = send()
            except StopIteration:
                return
            self.awaits += 1
            if self.awaits == self._number:
                if self._late and future is not None:
                    future.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                value = yield future
            except BaseException as error:  # noqa: BLE001 - the call decides what it means
                send = _thrower(steps, error)
            else:
                send = _sender(steps, value)


def _sender(steps: Generator[Any, Any, Any], value: object) -> Callable[[], Any]:
    return lambda: steps.send(value)


def _thrower(steps: Generator[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(error)


async def cancel_everywhere(make_call: Callable[[], Awaitable[object]], *, late: bool) -> int:
    """Make a call again and again, cancelled at its first, second, … await, until it completes."""
    for number in range(1, MAX_AWAITS):
        cancelled = CancelAt(make_call(), number, late=late)

        async def run(cancelled: CancelAt = cancelled) -> None:
            await cancelled

        task = asyncio.create_task(run())
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
            if cancelled.awaits < number:
                return number - 1
    pytest.fail("the call does not end")


async def transaction(store: Store, *, commits: bool) -> None:
    async with working(store) as work:
        await work.tx.execute("SELECT 1")
        await work.tx.execute("SELECT 2")
        if commits:
            await work.unit.commit()


async def take_announcement(store: Store) -> None:
    announcements = store.announcements()
    try:
        await anext(announcements)
    finally:
        await announcements.aclose()


Call = Callable[[Store], Awaitable[object]]

CALLS: dict[str, Call] = {
    "requeue": lambda store: store.requeue(1, ACT),  # the first one, as its job has the id 1
    "record": lambda store: record(store, *arrivals(3)),
    "claim": claim,
    "renew": lambda store: store.renew(["none"], 60.0),
    "release": lambda store: store.release("none", [1]),
    "settle_done": lambda store: store.settle_done("none", 1),
    "settle_error": lambda store: store.settle_error("none", 1, Reschedule(0.0, "again"), 0.1),
    "commit": lambda store: transaction(store, commits=True),
    "rollback": lambda store: transaction(store, commits=False),
    "register": lambda store: store.register(SOURCES, HANDLERS, []),
    "read": lambda store: store.events(EVERYTHING),
    "ready": lambda store: store.ready(),
}


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
async def test_a_call_cancelled_at_each_await_leaks_nothing(
    database_url: str, raw_db: RawDatabase, subtests: pytest.Subtests, *, late: bool
) -> None:
    for name, call in CALLS.items():
        with subtests.test(name):
            async with opened(database_url) as store:
                if name == "requeue":
                    await failed_job(store, "evt_failed")
                make_call = functools.partial(call, store)
                assert await cancel_everywhere(make_call, late=late) > 0
                await everything_works(store, f"evt_after_{name}")
                check_nothing_is_left(store, raw_db)


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
async def test_a_call_cancelled_while_it_opens_its_connection_leaks_nothing(
    postgres_url: str, subtests: pytest.Subtests, *, late: bool
) -> None:
    calls = {"record": CALLS["record"], "commit": CALLS["commit"], "listen": take_announcement}
    for name, call in calls.items():
        with subtests.test(name):
            async with opened(postgres_url) as store:
                assert isinstance(store, PostgresStore)

                def make_call(store: PostgresStore = store, call: Call = call) -> Awaitable[object]:
                    for pool in store._pools:
                        while pool._idle:
                            drop(pool._idle.pop())
                    return call(store)

                assert await cancel_everywhere(make_call, late=late) > 0
                await everything_works(store, f"evt_after_{name}")
                check_nothing_is_left(store, RawDatabase(postgres_url))


async def everything_works(store: Store, event_id: str = "evt_after") -> None:
    async with asyncio.timeout(WORKS_WITHIN_SECONDS):
        (receipt,) = await record(store, arrival(event_id))
        assert receipt.outcome is Outcome.RECORDED
        await store.register(SOURCES, HANDLERS, [])
        await store.ready()
        claimed = (await claim(store, limit=1000)).lease
        assert claimed is not None
        (job,) = [job.id for job in claimed.jobs if job.event_id == event_id]
        async with working(store) as work:
            await work.tx.execute("SELECT 1")
            assert await work.unit.settle(claimed.token, job)
        assert await store.job_status(job) is JobStatus.DONE
        while isinstance(store, PostgresStore) and store._announcer._task:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # a notification uses a connection for a moment longer


def check_nothing_is_left(store: Store, raw_db: RawDatabase) -> None:
    if isinstance(store, SqliteStore):
        assert not store._gate._is_held
        assert not store._gate._workers
        assert not store._gate._receivers
        return
    assert isinstance(store, PostgresStore)
    for pool in store._pools:
        assert pool._use_starts == []
        assert not pool._lent
        assert pool._slots._value == pool._size
        assert len(pool._idle) <= pool._size
    assert raw_db.value(LEFT_OPEN) == 0


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
async def test_an_opening_cancelled_at_each_await_leaves_no_connection(
    database_url: str, *, late: bool
) -> None:
    """The next process can open the database: no file lock and no advisory lock is held."""

    async def opening() -> None:
        store = make_store(database_url)
        try:
            await store.open(serving=True)
        finally:
            await store.close()

    assert await cancel_everywhere(opening, late=late) > 0
    async with opened(database_url) as store:
        await everything_works(store)


async def test_random_cancellations_leave_every_connection(
    store: Store, raw_db: RawDatabase
) -> None:
    """Many tasks compete for few connections, and each is cancelled at another moment."""

    async def run(seconds: float) -> None:
        with suppress(TimeoutError, StoreError):
            async with asyncio.timeout(seconds):
                await transaction(store, commits=True)

    for start in range(10):
        await asyncio.gather(*(run((start + number) * 0.0007) for number in range(20)))
    await everything_works(store)
    check_nothing_is_left(store, raw_db)
