"""Jobs that share a transaction: all of them commit with it, or none, and none is blamed for it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

import psycopg
import pytest

from onceward import Effects, Event, Inbox, PermanentError, Transaction
from onceward.errors import TransactionMisuse
from onceward.model.jobs import Job, JobStatus, Lease
from onceward.ports import Store
from onceward.runtime import timeouts as watch
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.work import batching as share
from onceward.work.batching import Held, Turn
from onceward.work.handlers import HandlerFunction, make_handler
from onceward.work.runner import JobRunner
from onceward.work.worker import Worker
from support.database import RawDatabase
from tests.factories import arrivals, job_item, lease, opened, record
from tests.inprocess import run_inbox


class Told(NamedTuple):
    """What became of the jobs of a turn."""

    settled: Sequence[Job] = ()
    apart: Sequence[Job] = ()
    left: Sequence[Job] = ()


Body = Callable[[Event[Any], Transaction], Awaitable[None]]
TABLE = "CREATE TABLE probes (event varchar(255))"
INSERT = "INSERT INTO probes (event) VALUES (:event)"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that last for as long as they need, on however busy a machine."""
    monkeypatch.setattr(share, "TURN_SECONDS", 10.0)


@pytest.fixture
def probes(raw_db: RawDatabase, store: Store) -> RawDatabase:
    """The database, with a table of the user's."""
    raw_db.rows(TABLE)
    return raw_db


def make_handling(store: Store, function: HandlerFunction) -> JobRunner:
    handler = make_handler(
        function,
        patterns=["invoice.paid"],
        source=None,
        name="credit",
        model=None,
        timeout_seconds=None,
        max_attempts=None,
    )
    return JobRunner(
        queue=store,
        handlers={"credit": handler},
        decide=lambda error, **_: pytest.fail(f"nothing is settled as failed: {error}"),
        clock=SystemClock(),
        failpoints=Failpoints(),
    )


async def probe(event: Event[Any], tx: Transaction) -> None:
    await tx.execute(INSERT, {"event": event.id})


def told(**parts: Sequence[Job]) -> Told:
    return Told(*(list(parts.get(name, ())) for name in Told._fields))


async def leased(store: Store, count: int = 5) -> Lease:
    await record(store, *arrivals(count))
    return await lease(store, limit=count)


async def run_turn(store: Store, held: Lease, body: Body = probe) -> "Told":
    async def credit(event: Event[Any], tx: Transaction) -> None:
        await body(event, tx)

    turn = await make_handling(store, credit).run_together([(held, job) for job in held.jobs])
    return Told(*([job for _, job in part] for part in (turn.settled, turn.apart, turn.left)))


async def statuses(store: Store, held: Lease) -> list[tuple[str, int]]:
    items = [await job_item(store, job.id) for job in held.jobs]
    return [(item.status, item.attempts) for item in items]


def assert_nothing_happened(probes: RawDatabase, found: list[tuple[str, int]]) -> None:
    assert probes.rows("SELECT event FROM probes") == []
    assert set(found) == {(JobStatus.IN_PROGRESS, 0)}


async def test_they_commit_together(store: Store, probes: RawDatabase) -> None:
    held = await leased(store)
    turn = await run_turn(store, held)
    assert turn == told(settled=held.jobs)
    assert Counter(probes.rows("SELECT event FROM probes")) == {
        (f"evt_{number}",): 1 for number in range(5)
    }
    assert await statuses(store, held) == [(JobStatus.DONE, 1)] * 5


async def test_they_share_one_transaction(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        raw_db = RawDatabase(postgres_url)
        raw_db.rows(TABLE)
        await run_turn(store, await leased(store))
        assert raw_db.value("SELECT count(DISTINCT xmin::text) FROM probes") == 1


async def test_they_may_be_of_several_leases(store: Store, probes: RawDatabase) -> None:
    await record(store, *arrivals(4))
    first, second = await lease(store, limit=3), await lease(store, limit=3)
    held = [(first, job) for job in first.jobs] + [(second, job) for job in second.jobs]
    turn = await make_handling(store, probe).run_together(held)
    assert turn.settled == held
    assert await statuses(store, first) + await statuses(store, second) == [(JobStatus.DONE, 1)] * 4


async def test_a_lost_lease_takes_along_what_shares_the_transaction(
    store: Store, probes: RawDatabase
) -> None:
    await record(store, *arrivals(4))
    first, second = await lease(store, limit=3), await lease(store, limit=3)
    await store.end_leases([second.token])
    held = [(first, job) for job in first.jobs] + [(second, job) for job in second.jobs]
    turn = await make_handling(store, probe).run_together(held)
    assert turn.apart == held
    assert probes.rows("SELECT event FROM probes") == []


async def test_those_that_write_nothing_are_done_as_well(store: Store) -> None:
    async def nothing(event: Event[Any], tx: Transaction) -> None:
        assert event.id

    held = await leased(store)
    assert await run_turn(store, held, nothing) == told(settled=held.jobs)
    assert await statuses(store, held) == [(JobStatus.DONE, 1)] * 5


async def test_when_one_fails_nothing_is_committed_and_it_goes_apart(
    store: Store, probes: RawDatabase
) -> None:
    async def fail_at_the_third(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.id == "evt_2":
            raise PermanentError("no such account")

    held = await leased(store)
    turn = await run_turn(store, held, fail_at_the_third)
    first, second, third, fourth, fifth = held.jobs
    assert turn == told(apart=[third], left=[first, second, fourth, fifth])
    assert_nothing_happened(probes, await statuses(store, held))


async def test_a_swallowed_error_breaks_the_turn(store: Store, probes: RawDatabase) -> None:
    async def swallow(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.id == "evt_1":
            with pytest.raises(Exception, match="no_such_table"):
                await tx.execute("SELECT * FROM no_such_table")

    held = await leased(store)
    turn = await run_turn(store, held, swallow)
    assert turn.apart == [held.jobs[1]]
    assert_nothing_happened(probes, await statuses(store, held))


async def test_a_turn_whose_lease_was_lost_commits_nothing(
    store: Store, probes: RawDatabase
) -> None:
    held = await leased(store)
    await store.end_leases([held.token])
    turn = await run_turn(store, held)
    assert turn == told(apart=held.jobs)
    assert probes.rows("SELECT event FROM probes") == []


async def test_one_job_that_was_given_back_takes_the_turn_along(
    store: Store, probes: RawDatabase
) -> None:
    held = await leased(store)
    await store.release(held.token, [held.jobs[3].id])
    turn = await run_turn(store, held)
    assert turn == told(apart=held.jobs)
    assert probes.rows("SELECT event FROM probes") == []


async def test_a_slow_turn_commits_what_it_has(
    store: Store, probes: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "TURN_SECONDS", 0.2)

    async def dawdle(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.id == "evt_1":
            await asyncio.sleep(0.21)

    held = await leased(store)
    turn = await run_turn(store, held, dawdle)
    assert turn == told(settled=held.jobs[:2], left=held.jobs[2:])
    assert probes.value("SELECT count(*) FROM probes") == 2


async def test_a_handler_that_takes_long_goes_apart(store: Store, probes: RawDatabase) -> None:
    async def sleep(event: Event[Any], tx: Transaction) -> None:
        if event.id == "evt_0":
            await asyncio.sleep(5)

    held = await leased(store)
    assert (await run_turn(store, held, sleep)).apart == [held.jobs[0]]
    assert_nothing_happened(probes, await statuses(store, held))


async def test_a_handler_that_will_not_be_broken_off_writes_nothing_more(
    store: Store, probes: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.1)
    ended = asyncio.Event()

    async def refuse(event: Event[Any], tx: Transaction) -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.4)
        with suppress(TransactionMisuse):
            await probe(event, tx)
        ended.set()

    held = await leased(store)
    assert (await run_turn(store, held, refuse)).apart == [held.jobs[0]]
    await asyncio.wait_for(ended.wait(), 5)
    assert_nothing_happened(probes, await statuses(store, held))


async def test_a_handler_that_is_cancelled_from_inside_goes_apart(store: Store) -> None:
    async def cancel(event: Event[Any], tx: Transaction) -> None:
        raise asyncio.CancelledError

    held = await leased(store)
    assert (await run_turn(store, held, cancel)).apart == [held.jobs[0]]


async def test_each_has_context_variables_of_its_own(store: Store) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="nobody")
    found = []

    async def set_it(event: Event[Any], tx: Transaction) -> None:
        found.append(variable.get())
        variable.set(event.id)
        await tx.execute("SELECT 1")
        found.append(variable.get())

    held = await leased(store, 2)
    assert (await run_turn(store, held, set_it)).settled == list(held.jobs)
    assert found == ["nobody", "evt_0", "nobody", "evt_1"]


async def test_an_error_that_comes_to_a_waiting_handler_can_be_caught_by_it(store: Store) -> None:
    async def try_it(event: Event[Any], tx: Transaction) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        except TimeoutError:
            await tx.execute("SELECT 1")

    held = await leased(store, 2)
    assert (await run_turn(store, held, try_it)).settled == list(held.jobs)


async def test_what_writes_after_its_return_writes_nothing(
    store: Store, probes: RawDatabase
) -> None:
    late: list[asyncio.Task[None]] = []

    async def leave_a_task(event: Event[Any], tx: Transaction) -> None:
        async def write() -> None:
            await asyncio.sleep(0.05)
            await probe(event, tx)

        if event.id == "evt_0":
            late.append(asyncio.create_task(write()))

    held = await leased(store)
    await run_turn(store, held, leave_a_task)
    await asyncio.gather(*late, return_exceptions=True)
    assert probes.rows("SELECT event FROM probes") == []


@pytest.mark.parametrize(
    "statement",
    [
        "SET LOCAL statement_timeout = '1h'",
        "SELECT pg_advisory_xact_lock(1)",
        "SELECT set_config('x.y', '1', true)",
        "CREATE TEMP TABLE t (n int)",
    ],
)
async def test_a_statement_that_reaches_beyond_its_job_goes_apart(
    postgres_url: str, statement: str
) -> None:
    async def reach(event: Event[Any], tx: Transaction) -> None:
        await tx.fetch(statement)

    async with opened(postgres_url) as store:
        held = await leased(store)
        assert (await run_turn(store, held, reach)).apart == [held.jobs[0]]


async def test_a_turn_waits_for_nobodys_locks(postgres_url: str) -> None:
    async def update(event: Event[Any], tx: Transaction) -> None:
        await tx.execute("UPDATE accounts SET balance = balance + 1")

    RawDatabase(postgres_url).rows("CREATE TABLE accounts AS SELECT 0 AS balance")
    with psycopg.connect(postgres_url) as other:
        other.execute("UPDATE accounts SET balance = 5")
        async with opened(postgres_url) as store, asyncio.timeout(5):
            held = await leased(store)
            assert (await run_turn(store, held, update)).apart == [held.jobs[0]]


async def test_an_error_that_comes_with_the_commit_sends_all_apart(postgres_url: str) -> None:
    async def point_nowhere(event: Event[Any], tx: Transaction) -> None:
        await tx.execute("INSERT INTO lines VALUES (1)")

    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE orders (id int PRIMARY KEY)")
    raw_db.rows("CREATE TABLE lines (id int REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
    async with opened(postgres_url) as store:
        held = await leased(store)
        assert await run_turn(store, held, point_nowhere) == told(apart=held.jobs)


async def test_only_known_quick_handlers_that_stay_in_their_transaction_share(
    store: Store, probes: RawDatabase
) -> None:
    async def with_effects(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        """Could reach outside."""

    async def without_tx(event: Event[Any]) -> None:
        """Can only reach outside."""

    held = await leased(store, 4)
    for function in (with_effects, without_tx, probe):
        handling = make_handling(store, function)
        assert not handling.may_share(held.jobs[0])
        if function is probe:
            for job in held.jobs[:3]:
                await handling.run(held.token, job)
            assert handling.may_share(held.jobs[3])


async def test_a_worker_has_every_job_done_once_whoever_fails_between_them(
    database_url: str, raw_db: RawDatabase
) -> None:
    inbox = Inbox()

    @inbox.at_start
    async def table(tx: Transaction) -> None:
        await tx.execute(TABLE)

    @inbox.on("order.*")
    async def book(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.payload % 7 == 0:
            raise PermanentError("no such order")

    async with run_inbox(inbox, database_url, workers=2) as bench:
        await asyncio.gather(*(bench.post("order.paid", n, f"evt_{n}") for n in range(150)))
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert {job.attempts for job in jobs.values()} == {1}
    failed = {name for name, job in jobs.items() if job.status is JobStatus.FAILED}
    assert failed == {f"evt_{n}/book" for n in range(0, 150, 7)}
    assert Counter(raw_db.rows("SELECT event FROM probes")) == {
        (f"evt_{n}",): 1 for n in range(150) if n % 7
    }


async def test_sharing_can_be_switched_off(postgres_url: str) -> None:
    inbox = Inbox()
    raw_db = RawDatabase(postgres_url)
    raw_db.rows(TABLE)

    @inbox.on("order.*")
    async def book(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)

    async with run_inbox(inbox, postgres_url, workers=1, max_jobs_per_transaction=1) as bench:
        await asyncio.gather(*(bench.post("order.paid", n, f"evt_{n}") for n in range(20)))
        await bench.wait_until_idle()
    assert raw_db.value("SELECT count(DISTINCT xmin::text) FROM probes") == 20


async def test_others_get_their_turn_in_a_single_place(sqlite_url: str) -> None:
    inbox = Inbox()
    order: list[str] = []

    @inbox.on("order.*")
    async def book(event: Event[Any], tx: Transaction) -> None:
        order.append("shared")

    @inbox.on("mail.*")
    async def send(event: Event[Any]) -> None:
        order.append("alone")

    async with run_inbox(inbox, sqlite_url, workers=1, max_jobs_per_transaction=4) as bench:
        for n in range(10):  # enough to know that it is quick
            await bench.post("order.paid", n, f"first_{n}")
        await bench.wait_until_idle()
        order.clear()
        posts = [bench.post("order.paid", n, f"evt_{n}") for n in range(100)]
        await asyncio.gather(bench.post("mail.due", 0, "mail"), *posts)
        await bench.wait_until_idle()
    assert "shared" in order[order.index("alone") :]


class Blocking(JobRunner):
    """Handling in which every turn lasts until it is broken off."""

    def __init__(self) -> None:
        self.max_shared_transactions: list[Sequence[Held]] = []

    async def run_together(self, held: Sequence[Held]) -> Turn:
        self.max_shared_transactions.append(held)
        await asyncio.Event().wait()
        return Turn()


@pytest.mark.parametrize("has_begun", [True, False])
async def test_when_one_lease_is_lost_what_is_under_the_others_is_run_again(
    store: Store, *, has_begun: bool
) -> None:
    await record(store, *arrivals(4))
    handling = Blocking()
    worker = Worker(
        name="w",
        queue=store,
        handling=handling,
        handlers=["credit"],
        settings=Settings(workers=1),
        clock=SystemClock(),
    )
    leases = [(await worker._leases.claim(2, solo=False)).lease for _ in range(2)]
    kept, lost = [[(lease, job) for job in lease.jobs] for lease in leases if lease]
    await store.end_leases([lost[0][0].token])
    gone = await worker._leases.renew()
    worker._share.size = 8
    worker._shareable.extend([*kept, *lost])
    worker._start()
    if has_begun:
        await asyncio.sleep(0)
    worker._let_go(gone)
    await asyncio.sleep(0.05)
    expected = [[*kept, *lost], kept] if has_begun else [kept]
    assert handling.max_shared_transactions == expected
    worker.stop()
    for task in worker._running:
        task.cancel()
    await asyncio.sleep(0)
