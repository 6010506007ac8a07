"""Effects with an unknown outcome: reconciled, repeated under their key, or left to a person."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from onceward.errors import EffectNotApplied, EffectUnknown, NotInState, PermanentError
from onceward.model.effects import (
    Applied,
    EffectStatus,
    NotApplied,
    Resolution,
    ResolvedOutcome,
    StillUnknown,
)
from onceward.model.jobs import Fail, FailureType, JobStatus
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import (
    ACT,
    EVERYTHING,
    job_item,
    leased_job,
    opened,
    start_task,
    working,
)
from tests.outside import (
    KEY,
    Attempts,
    Bank,
    begin_long_ago,
    effect_state,
    lose_answer,
    only_effect,
    pass_deadline,
)

PENDING, SUCCEEDED = EffectStatus.PENDING, EffectStatus.SUCCEEDED
FAILED, UNKNOWN = EffectStatus.FAILED, EffectStatus.UNKNOWN
HAPPENED, DID_NOT_HAPPEN = ResolvedOutcome.HAPPENED, ResolvedOutcome.DID_NOT_HAPPEN

Ask = Callable[..., Any]


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.mark.parametrize("status", ["pending", "unknown"])
async def test_without_a_policy_the_effect_waits_for_a_person(
    store: Store, bank: Bank, raw_db: RawDatabase, status: str
) -> None:
    """A call that its process did not live to end stays pending until somebody looks."""
    attempts = Attempts(store, bank)
    attempt = await lose_answer(attempts, raw_db)
    raw_db.rows(f"UPDATE onceward.effects SET status = '{status}'")  # noqa: S608 - no outside input
    with pytest.raises(EffectUnknown) as raised:
        await attempts.call(attempt)
    assert raised.value.needs_operator
    assert bank.calls == [KEY]
    assert await effect_state(store) == (UNKNOWN, 1)


async def test_reconcile_gets_the_key_and_the_arguments(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    asked = []

    async def reconcile(*arguments: object, **named: object) -> Applied:
        asked.append((arguments, named))
        return Applied({"receipt": "r_1"})

    attempts = Attempts(store, bank, reconcile=reconcile)
    attempt = await lose_answer(attempts, raw_db)
    assert await attempts.call(attempt) == {"receipt": "r_1"}
    assert await attempts.call(attempt) == {"receipt": "r_1"}
    assert asked == [((KEY, 5), {})]
    assert attempt.unresolved() is None
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_a_sync_reconcile_that_finds_nothing_lets_the_call_be_repeated(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    def reconcile(key: str, amount: int) -> NotApplied:
        assert (key, amount) == (KEY, 5)
        return NotApplied()

    attempts = Attempts(store, bank, reconcile=reconcile)
    attempt = await lose_answer(attempts, raw_db)
    assert await attempts.call(attempt) == {"receipt": 2, "amount": 5}
    assert await effect_state(store) == (SUCCEEDED, 2)


async def test_after_a_reconcile_a_refusal_is_known(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, reconcile=lambda *_: NotApplied())
    attempt = await lose_answer(attempts, raw_db)
    bank.error = EffectNotApplied("closed")
    with pytest.raises(EffectNotApplied):
        await attempts.call(attempt)
    assert await effect_state(store) == (FAILED, 2)


def _raise(*_: object) -> None:
    raise ConnectionError("unreachable")


@pytest.mark.parametrize(
    ("reconcile", "reason"),
    [
        (lambda *_: StillUnknown(), "reconcile cannot tell yet"),
        (_raise, "reconcile failed: ConnectionError: unreachable"),
    ],
    ids=["cannot tell", "fails"],
)
async def test_a_reconcile_without_an_answer_is_asked_again(
    store: Store, bank: Bank, raw_db: RawDatabase, reconcile: Ask, reason: str
) -> None:
    attempts = Attempts(store, bank, reconcile=reconcile)
    attempt = await lose_answer(attempts, raw_db)
    with pytest.raises(EffectUnknown, match=reason) as raised:
        await attempts.call(attempt)
    assert not raised.value.needs_operator
    assert attempt.unresolved() is raised.value
    assert bank.calls == [KEY]


async def test_an_answer_of_another_kind_is_a_mistake(
    store: Store, bank: Bank, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    answers: list[object] = []
    attempts = Attempts(store, bank, reconcile=lambda *_: answers[-1])
    await lose_answer(attempts, raw_db)
    advice = r"return Applied\(result\), NotApplied\(\) or"
    for answer in (True, None, Applied, NotApplied):
        with subtests.test(repr(answer)):
            answers.append(answer)
            attempt = await attempts.begin(f"evt of {answer!r}")
            with pytest.raises(EffectUnknown, match=advice) as raised:
                await attempts.call(attempt)
            assert raised.value.needs_operator
            assert attempt.unresolved() is raised.value
            assert bank.calls == [KEY]


async def test_of_two_that_reconcile_at_once_only_one_calls_again(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    """Two events share a key: both learn that nothing was applied."""
    both = asyncio.Barrier(2)

    async def reconcile(*_: object) -> NotApplied:
        await both.wait()
        return NotApplied()

    attempts = Attempts(store, bank, reconcile=reconcile)
    first = await lose_answer(attempts, raw_db)
    second = await attempts.begin("evt_2")
    results = await asyncio.gather(
        attempts.call(first), attempts.call(second), return_exceptions=True
    )
    assert bank.calls == [KEY, KEY]
    assert {"receipt": 2, "amount": 5} in results
    assert await effect_state(store) == (SUCCEEDED, 2)


async def test_a_retry_safe_call_is_repeated_under_its_key(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="24h")
    attempt = await lose_answer(attempts, raw_db)
    assert await attempts.call(attempt) == {"receipt": 2, "amount": 5}
    assert bank.calls == [KEY, KEY]
    assert await effect_state(store) == (SUCCEEDED, 2)


async def test_the_refusal_of_a_repeated_call_says_nothing_about_the_first(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="24h")
    attempt = await lose_answer(attempts, raw_db)
    bank.error = EffectNotApplied("the account is closed")
    with pytest.raises(EffectUnknown) as raised:
        await attempts.call(attempt)
    assert isinstance(raised.value.__cause__, EffectNotApplied)
    assert await effect_state(store) == (UNKNOWN, 2)


async def test_a_call_is_not_repeated_after_its_window(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="24h")
    attempt = await lose_answer(attempts, raw_db)
    begin_long_ago(raw_db)
    with pytest.raises(EffectUnknown, match="the time in which it may be repeated is over") as each:
        await attempts.call(attempt)
    assert each.value.needs_operator
    assert bank.calls == [KEY]


async def test_a_repeated_call_ends_with_its_window(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="2s", timeout_seconds=30)
    attempt = await lose_answer(attempts, raw_db)
    bank.answers.clear()
    bank.reached.clear()
    calling = asyncio.create_task(attempts.call(attempt))
    await bank.reached.wait()
    effect = await only_effect(store)
    assert effect.deadline_at is not None
    assert (effect.deadline_at - effect.created_at).total_seconds() == pytest.approx(2, abs=0.01)
    with pytest.raises(EffectUnknown, match="did not return within"):
        await calling


# Answers of a person.


async def fail_job(store: Store, attempts: Attempts, raw_db: RawDatabase) -> int:
    """Let a job fail because of an effect with an unknown outcome; return the effect's id."""
    token, job = await leased_job(store)
    attempts.bank.error = ConnectionResetError("lost")
    with pytest.raises(EffectUnknown) as raised:
        await attempts.call(attempts.of(token, job))
    attempts.bank.error = None
    effect = raised.value.effect
    failure = Fail(FailureType.UNKNOWN_OUTCOME, str(raised.value), effect=effect)
    assert await store.settle_error(token, job.id, failure, 0.1)
    pass_deadline(raw_db)
    return effect


async def test_an_effect_that_happened_returns_the_persons_result(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    effect = await fail_job(store, attempts, raw_db)
    resolved = await store.resolve_effect(effect, Resolution(HAPPENED, result='{"n": 1}'), ACT)
    assert resolved is not None
    assert (resolved.status, resolved.requeued) == (SUCCEEDED, ("1",))
    assert (resolved.audit.subject, resolved.audit.action) == (
        f"effect:{effect}",
        "resolve_happened",
    )
    assert (await job_item(store, 1)).status is JobStatus.QUEUED
    assert await attempts.call(await attempts.next()) == {"n": 1}
    assert bank.calls == [KEY]


async def test_without_a_result_the_call_returns_none(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    effect = await fail_job(store, attempts, raw_db)
    assert await store.resolve_effect(effect, Resolution(HAPPENED), ACT)
    assert await attempts.call(await attempts.next()) is None


async def test_an_effect_that_did_not_happen_is_called_again(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    effect = await fail_job(store, attempts, raw_db)
    resolved = await store.resolve_effect(effect, Resolution(DID_NOT_HAPPEN, call_no=1), ACT)
    assert resolved is not None
    assert resolved.status is FAILED
    assert await attempts.call(await attempts.next()) == {"receipt": 2, "amount": 5}
    audit = await store.audit(EVERYTHING)
    assert [(entry.action, entry.subject) for entry in audit] == [
        ("resolve_did_not_happen", f"effect:{effect}"),
        ("manual_requeue", "job:1"),
    ]
    assert {(entry.actor, entry.reason) for entry in audit} == {(ACT.actor, ACT.reason)}


async def test_every_job_that_waits_for_the_answer_is_queued_again(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    effect = await fail_job(store, attempts, raw_db)
    for number in (2, 3):
        token, job = await leased_job(store, f"evt_{number}")
        waits_for = effect if number == 2 else effect + 1
        failure = Fail(FailureType.UNKNOWN_OUTCOME, "waits", effect=waits_for)
        await store.settle_error(token, job.id, failure, 0.1)
    resolved = await store.resolve_effect(effect, Resolution(HAPPENED), ACT)
    assert resolved is not None
    assert resolved.requeued == ("1", "2")
    assert (await job_item(store, 3)).status is JobStatus.FAILED


async def test_a_job_that_failed_for_another_reason_since_is_left_alone(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    effect = await fail_job(store, attempts, raw_db)
    await store.requeue(1, ACT)
    token = (await attempts.next())._token
    await store.settle_error(token, 1, Fail(FailureType.PERMANENT, "no such account"), 0.1)
    resolved = await store.resolve_effect(effect, Resolution(HAPPENED), ACT)
    assert resolved is not None
    assert resolved.requeued == ()


@pytest.mark.parametrize("outcome", [HAPPENED, DID_NOT_HAPPEN])
async def test_a_job_that_fails_after_the_answer_is_queued_again(
    store: Store, bank: Bank, raw_db: RawDatabase, outcome: ResolvedOutcome
) -> None:
    """It saw the unknown outcome before the answer, which wakes only jobs that have failed."""
    attempts = Attempts(store, bank)
    effect = await fail_job(store, attempts, raw_db)
    token, job = await leased_job(store, "evt_2")
    resolution = Resolution(outcome, call_no=1)
    assert await store.resolve_effect(effect, resolution, ACT)
    failure = Fail(FailureType.UNKNOWN_OUTCOME, "seen before", effect=effect)
    assert await store.settle_error(token, job.id, failure, 0.1)
    item = await job_item(store, job.id)
    assert (item.status, item.failure_type, item.finished_at) == (JobStatus.QUEUED, None, None)
    assert item.attempts == 1


async def test_a_settlement_waits_for_the_answer_in_another_transaction(
    postgres_url: str, bank: Bank
) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        effect = await fail_job(store, Attempts(store, bank), raw_db)
        token, job = await leased_job(store, "evt_2")
        failure = Fail(FailureType.UNKNOWN_OUTCOME, "seen before", effect=effect)
        with raw_db.connection() as connection:
            connection.execute("UPDATE onceward.effects SET status = 'succeeded'")
            settling = await start_task(store.settle_error(token, job.id, failure, 0.1))
            assert not settling.done()
            connection.commit()
            assert await settling
        assert (await job_item(store, job.id)).status is JobStatus.QUEUED


@pytest.mark.parametrize(
    ("status", "resolution"),
    [("succeeded", Resolution(HAPPENED)), ("failed", Resolution(DID_NOT_HAPPEN, call_no=1))],
    ids=["succeeded", "failed"],
)
async def test_an_answer_that_became_known_queues_the_jobs_that_still_wait(
    store: Store, bank: Bank, raw_db: RawDatabase, status: str, resolution: Resolution
) -> None:
    effect = await fail_job(store, Attempts(store, bank), raw_db)
    known = f"status = '{status}', result = '5', error_message = NULL"
    raw_db.rows(f"UPDATE onceward.effects SET {known}")  # noqa: S608 - no outside input
    resolved = await store.resolve_effect(effect, resolution, ACT)
    assert resolved is not None
    assert resolved.requeued == ("1",)
    assert raw_db.value("SELECT result FROM onceward.effects") == "5"
    with pytest.raises(NotInState):
        await store.resolve_effect(effect, resolution, ACT)


async def test_an_answer_before_the_deadline_is_refused(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    bank.error = ConnectionResetError("lost")
    with pytest.raises(EffectUnknown) as raised:
        await attempts.call(attempt)
    for resolution in (Resolution(HAPPENED), Resolution(DID_NOT_HAPPEN, call_no=1)):
        with pytest.raises(NotInState, match=r"may be under way for \d+ s more"):
            await store.resolve_effect(raised.value.effect, resolution, ACT)
    assert await store.audit(EVERYTHING) == []
    assert raw_db.count("onceward.audit") == 0


async def test_an_answer_about_an_earlier_call_is_refused(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="24h")
    attempt = await lose_answer(attempts, raw_db)
    bank.error = ConnectionResetError("lost again")
    with pytest.raises(EffectUnknown) as raised:
        await attempts.call(attempt)
    pass_deadline(raw_db)
    with pytest.raises(NotInState, match="its last call is 2, not 1"):
        await store.resolve_effect(raised.value.effect, Resolution(DID_NOT_HAPPEN, call_no=1), ACT)
    assert await effect_state(store) == (UNKNOWN, 2)


@pytest.mark.parametrize(
    ("resolution", "reason"),
    [
        (Resolution(HAPPENED), "already succeeded"),
        (Resolution(DID_NOT_HAPPEN, call_no=1), "already succeeded"),
    ],
    ids=["happened", "did not happen"],
)
async def test_a_known_success_cannot_be_changed(
    store: Store, bank: Bank, raw_db: RawDatabase, resolution: Resolution, reason: str
) -> None:
    attempts = Attempts(store, bank)
    await attempts.call(await attempts.begin())
    pass_deadline(raw_db)
    with pytest.raises(NotInState, match=reason):
        await store.resolve_effect(1, resolution, ACT)


async def test_a_person_adds_the_result_that_could_not_be_stored(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    async def charge(amount: int) -> object:
        return object() if amount else None

    attempts = Attempts(store, bank, function=charge)
    attempt = await attempts.begin()
    with pytest.raises(PermanentError):
        await attempts.call(attempt)
    pass_deadline(raw_db)
    assert await store.resolve_effect(1, Resolution(HAPPENED, result='"r_1"'), ACT)
    assert await attempts.call(attempt) == "r_1"


async def test_a_mark_and_an_unknown_id_cannot_be_resolved(store: Store) -> None:
    async with working(store) as work:
        await work.effects(1).once("mail:1")
        await work.unit.commit()
    with pytest.raises(NotInState, match=r"a mark of effects\.once"):
        await store.resolve_effect(1, Resolution(HAPPENED), ACT)
    assert await store.resolve_effect(99, Resolution(HAPPENED), ACT) is None
