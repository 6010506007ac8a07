"""Outside calls and the queue: the order of a key, and the jobs that an answer queues again."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from onceward.errors import EffectUnknown, NotInState
from onceward.model.effects import Resolution, ResolvedOutcome
from onceward.model.events import Arrival
from onceward.model.jobs import (
    Fail,
    FailureType,
    HandlerEntry,
    JobStatus,
    QueueRules,
    Reschedule,
    Route,
)
from onceward.ports import Store
from onceward.work.outside.calls import AttemptCalls
from support.database import RawDatabase
from tests.factories import (
    ACT,
    BROKEN,
    EVERYTHING,
    SOURCES,
    arrival,
    claim,
    job_item,
    lease,
    opened,
    record,
    start_task,
)
from tests.outside import KEY, Attempts, Bank, pass_deadline

OPEN: Final = {"pending": True, "unknown": True, "succeeded": False, "failed": False}
IN_ORDER = QueueRules(ordering_key="plan", holds_key=False)


@pytest.fixture
def bank() -> Bank:
    return Bank()


async def begin_keyed(
    store: Store, attempts: Attempts, *others: str, plan: str = "a"
) -> AttemptCalls:
    """Begin the first job of a key. Other handlers have jobs of the same key."""
    names = ("credit", *others)
    handlers = [HandlerEntry(name, 3, (Route("invoice.paid"),), IN_ORDER) for name in names]
    await store.register(SOURCES, handlers, [])
    await record(store, of_plan("first", plan))
    leased = await lease(store)
    (job,) = leased.jobs
    return attempts.of(leased.token, job)


def of_plan(name: str, plan: str) -> Arrival:
    return arrival(f"{name} of {plan}", body=f'{{"plan": "{plan}"}}'.encode())


async def fail_and_go_on(store: Store, attempt: AttemptCalls, plan: str = "a") -> int:
    """Let the first job fail, record the next event of its key, and return the next job."""
    assert await store.settle_error(attempt._token, attempt._job.id, BROKEN, 0.1)
    await record(store, of_plan("second", plan))
    return max(int(job.id) for job in await store.jobs(EVERYTHING) if job.handler == "credit")


async def lose(attempt: AttemptCalls, bank: Bank, key: str = KEY) -> None:
    bank.error = ConnectionResetError("lost")
    with pytest.raises(EffectUnknown):
        await attempt.call(attempt.check(key, bank.charge, (5,), {}))


async def claimed(store: Store, **options: Any) -> list[int]:
    made = (await claim(store, **options)).lease
    return [] if made is None else [job.id for job in made.jobs]


async def test_the_next_job_of_a_key_waits_for_an_open_call_only(
    store: Store, bank: Bank, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for status, waits in OPEN.items():
        with subtests.test(status):
            attempt = await begin_keyed(store, Attempts(store, bank), plan=status)
            await lose(attempt, bank, key=status)
            raw_db.rows(f"UPDATE onceward.effects SET status = '{status}'")  # noqa: S608 - no outside input
            second = await fail_and_go_on(store, attempt, plan=status)
            assert await claimed(store) == ([] if waits else [second])
            if waits:
                effect, *_ = await store.effects(EVERYTHING)
                assert (await job_item(store, second)).available_at == effect.deadline_at
                raw_db.make_due()
                assert await claimed(store) == []  # an earlier look changes nothing
                pass_deadline(raw_db)
                raw_db.make_due()
                assert await claimed(store) == [second]


async def test_the_next_job_waits_for_the_last_of_several_deadlines(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempt = await begin_keyed(store, Attempts(store, bank, timeout_seconds=60))
    await lose(attempt, bank)

    async def refund() -> None:  # has the default timeout of 10 s
        raise ConnectionResetError("lost")

    with pytest.raises(EffectUnknown):
        await attempt.call(attempt.check("refund:1", refund, (), {}))
    await fail_and_go_on(store, attempt)
    assert await claimed(store) == []
    last = raw_db.value("SELECT max(deadline_at) FROM onceward.effects")
    (waiting,) = raw_db.rows("SELECT available_at FROM onceward.jobs WHERE id = 2")
    assert waiting == (last,)


async def test_the_same_key_of_another_handler_does_not_wait(store: Store, bank: Bank) -> None:
    attempt = await begin_keyed(store, Attempts(store, bank), "notify")
    await lose(attempt, bank)
    await fail_and_go_on(store, attempt)
    assert len(await claimed(store, handlers=["notify"])) == 1
    assert await claimed(store) == []


async def test_a_job_does_not_wait_for_a_call_of_its_own(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    """Its other effects may go on; `effects.call` waits for the open one if it comes to it."""
    attempt = await begin_keyed(store, Attempts(store, bank))
    await lose(attempt, bank)
    again = Reschedule(0.0, "once more")
    assert await store.settle_error(attempt._token, attempt._job.id, again, 0.1)
    assert await claimed(store) == [attempt._job.id]


async def test_a_job_that_an_answer_queues_has_all_its_attempts(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await lose(attempt, bank)
    failure = Fail(FailureType.UNKNOWN_OUTCOME, "unknown", effect=1)
    assert await store.settle_error(attempt._token, 1, failure, 0.1)
    pass_deadline(raw_db)
    later = "9000000000000000" if raw_db.is_sqlite else "now() + interval '1 hour'"
    parked = "1" if raw_db.is_sqlite else "true"
    raw_db.rows(f"UPDATE onceward.jobs SET available_at = {later}, parked = {parked}")  # noqa: S608 - no outside input
    assert await store.resolve_effect(1, Resolution(ResolvedOutcome.HAPPENED), ACT)
    job = await job_item(store, 1)
    assert (job.attempts, job.max_attempts) == (1, 4)
    assert (job.failure_type, job.finished_at, job.waiting) == (None, None, None)
    assert job.available_at <= datetime.now(UTC)
    assert raw_db.value("SELECT effect FROM onceward.jobs") is None
    assert await claimed(store) == [1]


async def test_a_requeued_job_waits_for_no_effect(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await lose(attempt, bank)
    failure = Fail(FailureType.UNKNOWN_OUTCOME, "unknown", effect=1)
    assert await store.settle_error(attempt._token, 1, failure, 0.1)
    assert raw_db.value("SELECT effect FROM onceward.jobs") == 1
    await store.requeue(1, ACT)
    assert raw_db.value("SELECT effect FROM onceward.jobs") is None


async def test_an_answer_does_not_queue_a_job_that_was_cancelled(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await lose(attempt, bank)
    failure = Fail(FailureType.UNKNOWN_OUTCOME, "unknown", effect=1)
    assert await store.settle_error(attempt._token, 1, failure, 0.1)
    assert await store.cancel(1, ACT)
    pass_deadline(raw_db)
    resolved = await store.resolve_effect(1, Resolution(ResolvedOutcome.HAPPENED), ACT)
    assert resolved is not None
    assert resolved.requeued == ()
    assert (await job_item(store, 1)).status is JobStatus.CANCELLED
    assert [entry.action for entry in await store.audit(EVERYTHING)] == [
        "resolve_happened",
        "cancel",
    ]


async def test_an_answer_waits_for_an_outcome_in_another_transaction(
    postgres_url: str, bank: Bank
) -> None:
    """A success that is being stored must not be overwritten: the call would be repeated."""
    raw_db = RawDatabase(postgres_url)
    resolution = Resolution(ResolvedOutcome.DID_NOT_HAPPEN, call_no=1)
    async with opened(postgres_url) as store:
        await lose(await Attempts(store, bank).begin(), bank)
        pass_deadline(raw_db)
        with raw_db.connection() as connection:
            connection.execute("UPDATE onceward.effects SET status = 'succeeded', result = '7'")
            connection.execute("UPDATE onceward.effects SET error_message = NULL")
            resolving = await start_task(store.resolve_effect(1, resolution, ACT))
            assert not resolving.done()
            connection.commit()
            with pytest.raises(NotInState, match="already succeeded"):
                await resolving
    assert raw_db.rows("SELECT status, result FROM onceward.effects") == [("succeeded", "7")]
