"""Factories for arrivals, handlers and open stores, and shortcuts for common steps."""

import asyncio
import hashlib
import secrets
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from onceward.model.admin import JobItem, OperatorAction, PageQuery
from onceward.model.events import Arrival, DuplicateBody, Event, Receipt
from onceward.model.inline import InlineFailure, InlineRun
from onceward.model.jobs import (
    Claim,
    ClaimRequest,
    Fail,
    FailureType,
    HandlerEntry,
    Job,
    Lease,
    Route,
)
from onceward.ports import InlineTransaction, Store, StoreTransaction, ignore_idle_timeout
from onceward.runtime.clock import Clock, SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.store.postgres.store import PostgresStore
from onceward.store.queries import Queries
from onceward.store.sqlite.store import SqliteStore
from onceward.work.outside.calls import AttemptCalls, NoCalls, OutsideCalls
from onceward.work.outside.declaration import OutsideEffects
from onceward.work.running.effects import EffectContext, Effects
from onceward.work.running.transaction import Transaction, UnitOfWork
from support.database import RawDatabase
from support.processes import eventually_async

T = TypeVar("T")

SOURCES = ("ingest", "stripe")
CREDIT = HandlerEntry("credit", 3, (Route("invoice.paid"),))
NOTIFY = HandlerEntry("notify", 5, (Route("order.*"),))
HANDLERS = (CREDIT, NOTIFY)
ACT = OperatorAction(actor="Ann", authenticated_as="token:ops", reason="the bank was down")
BROKEN = Fail(FailureType.PERMANENT, "no such account")
EVERYTHING = PageQuery(limit=1000)
ANY_NUMBER = 1_000_000


def arrival(
    event_id: str = "evt_1",
    *,
    source: str = "stripe",
    type: str = "invoice.paid",
    reference: str | None = None,
    body: bytes = b"{}",
) -> Arrival:
    """Return a verified delivery."""
    sha256 = hashlib.sha256(body).digest()
    return Arrival(source, event_id, type, reference, sha256, b'{"via":"test"}', body)


def checked(
    event_id: str, rule: DuplicateBody, *, covered: bytes | None = None, **fields: Any
) -> Arrival:
    """Return a delivery of a source with a rule for duplicate bodies."""
    covered_sha256 = None if covered is None else hashlib.sha256(covered).digest()
    return arrival(event_id, **fields)._replace(duplicate_body=rule, covered_sha256=covered_sha256)


def make_event(source: str = "stripe", payload: object = None) -> Event[Any]:
    """Return an event as a handler gets it."""
    return Event(
        id="evt_1",
        source=source,
        type="invoice.paid",
        reference=None,
        received_at=datetime.now(UTC),
        body=b"",
        headers={},
        _decode=lambda: payload,
    )


def arrivals(count: int, *, type: str = "invoice.paid", prefix: str = "evt") -> list[Arrival]:
    """Return deliveries of this many different events."""
    return [arrival(f"{prefix}_{number}", type=type) for number in range(count)]


def make_store(
    url: str, *, clock: Clock | None = None, failpoints: str = "", **settings: Any
) -> SqliteStore | PostgresStore:
    """Return a store that is not open yet."""
    resolved = Settings(database_url=url, **settings)
    if url.startswith("sqlite:"):
        return SqliteStore(resolved, Failpoints(failpoints), clock or SystemClock())
    return PostgresStore(resolved, Failpoints(failpoints))


@asynccontextmanager
async def opened(
    url: str,
    *,
    serving: bool = True,
    sources: Sequence[str] = SOURCES,
    handlers: Sequence[HandlerEntry] = HANDLERS,
    **options: Any,
) -> AsyncIterator[Store]:
    """Open a store and register sources and handlers, as one process does."""
    store = make_store(url, **options)
    await store.open(serving=serving)
    try:
        await store.register(sources, handlers, [])
        yield store
    finally:
        await store.close()


async def record(store: Store, *batch: Arrival) -> list[Receipt]:
    """Record deliveries in one batch."""
    return await store.record(batch)


async def claim(
    store: Store,
    *,
    limit: int = 10,
    solo: bool = False,
    handlers: Sequence[str] | Mapping[str, int] = ("credit",),
    worker: str = "worker-1",
    owner: int = 0,
    slots: int = ANY_NUMBER,
    ended: Sequence[str] = (),
    settled: Sequence[int] = (),
    looks_for_lost: bool = True,
) -> Claim:
    """Claim jobs. A mapping of handlers has the number of jobs wanted of each."""
    wanted = handlers if isinstance(handlers, Mapping) else dict.fromkeys(handlers, limit)
    return await store.claim(
        ClaimRequest(
            token=uuid.uuid4().hex,
            worker=worker,
            owner=owner,
            wanted=wanted,
            limit=limit,
            solo=solo,
            slots=slots,
            lease_seconds=60.0,
            ended=ended,
            settled=settled,
            looks_for_lost=looks_for_lost,
        )
    )


async def lease(store: Store, **options: Any) -> Lease:
    """Claim jobs that must exist, and return their lease."""
    claimed = (await claim(store, **options)).lease
    assert claimed is not None
    return claimed


async def leased_job(store: Store, event_id: str = "evt_1") -> tuple[str, Job]:
    """Record an event, lease its job, and return the lease's token and the job."""
    await record(store, arrival(event_id))
    claimed = await lease(store)
    (job,) = claimed.jobs
    return claimed.token, job


async def failed_job(store: Store, event_id: str = "evt_1") -> Job:
    """Return a job that failed permanently."""
    token, job = await leased_job(store, event_id)
    assert await store.settle_error(token, job.id, BROKEN, 0.1)
    return job


async def job_item(store: Store, job: int) -> JobItem:
    """Return a job from the list of jobs."""
    (item,) = [item for item in await store.jobs(EVERYTHING) if item.id == str(job)]
    return item


@dataclass(frozen=True)
class Work:
    """A handler's transaction: the unit of work, and the handler's view of it."""

    unit: UnitOfWork
    tx: Transaction

    def effects(self, job: int, calls: AttemptCalls | NoCalls = NoCalls.SHARED) -> Effects:
        """Return the effects of a job that does its work here."""
        return Effects(EffectContext(self.unit, job, calls))


async def settle_in_flight(transaction: StoreTransaction, token: str, job: int) -> None:
    """Settle a job on PostgreSQL as the server does before the commit of the same message."""
    settle = Queries("postgres").one("settle_done")
    rows = await transaction.run(settle, {"token": token, "jobs": [job]})
    assert [row["landed"] for row in rows.rows] == [True]


@asynccontextmanager
async def working(store: Store, location: str = "handlers.py:7 in credit") -> AsyncIterator[Work]:
    """Begin a transaction as for a handler; roll it back unless it is settled."""
    async with UnitOfWork(
        lambda *_: store.begin(lambda: location), SystemClock(), Failpoints()
    ) as unit:
        yield Work(unit, Transaction(unit))


def make_outside_calls(
    store: Store,
    effects: OutsideEffects | None = None,
    clock: Clock | None = None,
    failpoints: Failpoints | None = None,
) -> OutsideCalls:
    """Return the outside calls of a process, with a timeout of 10 s."""
    return OutsideCalls(
        store=store,
        effects=effects or OutsideEffects(),
        timeout_seconds=10.0,
        clock=clock or SystemClock(),
        failpoints=failpoints or Failpoints(),
        make_nonce=lambda: secrets.token_hex(8),
    )


@asynccontextmanager
async def processing(store: Store, *deliveries: Arrival) -> AsyncIterator[InlineTransaction]:
    """Lock the events of a request and begin the transaction of its handlers."""
    async with (
        store.lock_events(deliveries) as events,
        events.begin(lambda: "handlers.py:7 in credit", ignore_idle_timeout) as transaction,
    ):
        yield transaction


def inline_failure(run: InlineRun, error: str = "no such account") -> InlineFailure:
    """Return the failure of a handler within the request."""
    return InlineFailure(run, error, "handlers.py:7 in credit", 0.1)


async def start_task(call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task and give it time to run until it blocks."""
    task = asyncio.create_task(call)
    await asyncio.sleep(0.05)
    return task


async def until_locks_are_awaited(url: str, count: int = 1) -> None:
    """Wait until as many statements on a PostgreSQL database wait for locks."""
    raw_db = RawDatabase(url)

    async def are_awaited() -> bool:
        waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
        return int(raw_db.value(waiting)) >= count

    await eventually_async(are_awaited, f"{count} statements wait for locks")


class FakeClock:
    """A clock that the test advances."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.seconds = now

    def now(self) -> float:
        return self.seconds

    def boottime(self) -> float:
        return self.monotonic()

    def cpu_time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return self.seconds
