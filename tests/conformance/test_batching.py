"""Jobs that share a transaction: all of them commit with it, or none, and none is blamed for it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

import psycopg
import pytest

from onceward import (
    Effects,
    Event,
    PermanentError,
    SyncEffects,
    SyncTransaction,
    Transaction,
)
from onceward.errors import TransactionMisuse
from onceward.model.jobs import Job, JobStatus, Lease
from onceward.ports import Store
from onceward.runtime import timeouts as watch
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.work import batching as share
from onceward.work.handlers import HandlerFunction, TransactionMode, make_handler
from onceward.work.runner import JobRunner
from onceward.work.settlement import SettlementPolicy
from support.database import RawDatabase
from tests.factories import EVERYTHING, arrivals, job_item, lease, opened, record, working


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


class NoFailure(SettlementPolicy):
    """A policy for tests in which no attempt is settled as failed."""

    def decide(self, error: Exception, *, attempts: int, max_attempts: int) -> NoReturn:
        pytest.fail(f"an attempt failed: {error}")


def make_handling(
    store: Store, function: HandlerFunction, transaction: TransactionMode = "shared"
) -> JobRunner:
    handler = make_handler(
        function,
        patterns=["invoice.paid"],
        source=None,
        name="credit",
        model=None,
        timeout_seconds=None,
        max_attempts=None,
        transaction=transaction,
    )
    return JobRunner(
        queue=store,
        handlers={"credit": handler},
        settlement_policy=NoFailure(base_seconds=1, max_seconds=1, random=lambda: 0.0),
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


async def test_a_turn_waits_for_nobodys_locks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "HANDLER_SECONDS", 60.0)

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


async def test_a_shared_handler_shares_once_it_is_known_to_be_quick(
    store: Store, probes: RawDatabase
) -> None:
    held = await leased(store, 4)
    handling = make_handling(store, probe)
    assert not handling.may_share(held.jobs[3])
    for job in held.jobs[:3]:
        await handling.run(held.token, job)
    assert handling.may_share(held.jobs[3])


async def test_sync_handlers_share_a_transaction(store: Store, probes: RawDatabase) -> None:
    def insert(event: Event[Any], tx: SyncTransaction, effects: SyncEffects) -> None:
        assert effects.once(f"insert:{event.id}")
        tx.execute(INSERT, {"event": event.id})

    held = await leased(store)
    turn = await make_handling(store, insert).run_together([(held, job) for job in held.jobs])
    assert [job for _, job in turn.settled] == list(held.jobs)
    assert probes.value("SELECT count(*) FROM probes") == len(await store.effects(EVERYTHING)) == 5


# Effects in a shared transaction.


async def mark(event: Event[Any], tx: Transaction, effects: Effects) -> None:
    """Write a row for the first event of each key: evt_0 and evt_2 have the same."""
    if await effects.once(f"credit:{int(event.id[-1]) % 2}", reference=event.id):
        await probe(event, tx)


@pytest.mark.parametrize("function", [probe, mark])
@pytest.mark.parametrize("transaction", ["own", "shared"])
async def test_only_the_declaration_of_a_handler_decides_whether_it_shares(
    store: Store, probes: RawDatabase, function: HandlerFunction, transaction: TransactionMode
) -> None:
    held = await leased(store, 4)
    handling = make_handling(store, function, transaction)
    for job in held.jobs[:3]:
        await handling.run(held.token, job)
    assert handling.may_share(held.jobs[3]) is (transaction == "shared")


async def test_effects_commit_with_the_shared_transaction(
    store: Store, probes: RawDatabase
) -> None:
    held = await leased(store)
    turn = await make_handling(store, mark).run_together([(held, job) for job in held.jobs])
    assert [job for _, job in turn.settled] == list(held.jobs)
    effects = {effect.idempotency_key: effect for effect in await store.effects(EVERYTHING)}
    assert {key: effect.reference for key, effect in effects.items()} == {
        "credit:0": "evt_0",
        "credit:1": "evt_1",
    }
    assert effects["credit:0"].job_id == str(held.jobs[0].id)
    assert sorted(probes.rows("SELECT event FROM probes")) == [("evt_0",), ("evt_1",)]


async def test_effects_are_rolled_back_with_the_shared_transaction(
    store: Store, probes: RawDatabase
) -> None:
    async def fail_at_the_last(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        await mark(event, tx, effects)
        if event.id == "evt_4":
            raise OSError("the bank is closed")

    held = await leased(store)
    handling = make_handling(store, fail_at_the_last)
    turn = await handling.run_together([(held, job) for job in held.jobs])
    assert [job for _, job in turn.apart] == [held.jobs[4]]
    assert await store.effects(EVERYTHING) == []
    assert_nothing_happened(probes, await statuses(store, held))
    again = await handling.run_together(turn.left)
    assert again.settled == turn.left
    assert len(await store.effects(EVERYTHING)) == 2


async def test_a_key_that_another_transaction_is_marking_sends_the_job_apart(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "HANDLER_SECONDS", 60.0)
    async with opened(postgres_url) as store, asyncio.timeout(5):
        RawDatabase(postgres_url).rows(TABLE)
        held = await leased(store)
        async with working(store) as work:
            assert await Effects(work.unit, 99).once("credit:1")
            turn = await make_handling(store, mark).run_together([(held, job) for job in held.jobs])
        assert [job for _, job in turn.apart] == [held.jobs[1]]
        assert await store.effects(EVERYTHING) == []
