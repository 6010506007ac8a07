"""Outside calls: the intent comes before the call, and no call is repeated blindly."""

import asyncio
from typing import Any, Final

import pytest

from onceward.errors import (
    EffectNotApplied,
    EffectPending,
    EffectUnknown,
    LeaseLost,
    OutcomeUnknown,
    PermanentError,
)
from onceward.model.effects import MAX_RESULT_BYTES, EffectStatus
from onceward.ports import Store
from onceward.store.effect_calls import SqlEffectCalls
from onceward.work.outside import calls
from onceward.work.outside.calls import AttemptCalls
from support.database import RawDatabase
from tests.factories import ACT, FakeClock, lease, opened, start_task, working
from tests.outside import KEY, Attempts, Bank, effect_state, only_effect, open_call, pass_deadline

PENDING, SUCCEEDED = EffectStatus.PENDING, EffectStatus.SUCCEEDED
FAILED, UNKNOWN = EffectStatus.FAILED, EffectStatus.UNKNOWN


class Refused(Exception):
    """Declared as an error after which nothing was applied."""


@pytest.fixture
def bank() -> Bank:
    return Bank()


async def test_a_call_is_made_once_and_its_result_returned_ever_after(
    store: Store, bank: Bank
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    results = [await attempts.call(attempt) for _ in range(3)]
    assert results == [{"receipt": 1, "amount": 5}] * 3
    assert bank.calls == [KEY]
    assert await effect_state(store) == (SUCCEEDED, 1)
    assert attempt.unresolved() is None


async def test_the_intent_is_committed_before_the_call(store: Store, bank: Bank) -> None:
    bank.answers.clear()
    attempts = Attempts(store, bank, timeout_seconds=30)
    attempt = await attempts.begin()
    calling = asyncio.create_task(attempts.call(attempt))
    await bank.reached.wait()
    effect = await only_effect(store)
    assert (effect.status, effect.call_no, effect.function) == (PENDING, 1, "charge")
    assert effect.deadline_at is not None
    assert 29 < (effect.deadline_at - effect.updated_at).total_seconds() <= 30
    assert isinstance(attempt.unresolved(), EffectUnknown)
    bank.answers.set()
    await calling
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_another_attempt_waits_for_the_deadline_of_an_open_call(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    bank.answers.clear()
    attempts = Attempts(store, bank)
    calling = asyncio.create_task(attempts.call(await attempts.begin()))
    await bank.reached.wait()
    raw_db.expire_leases()
    second = await attempts_after_crash(store, attempts)
    with pytest.raises(EffectPending) as raised:
        await attempts.call(second)
    assert 9 < raised.value.seconds <= 10
    assert second.unresolved() is raised.value
    bank.answers.set()
    assert await calling == {"receipt": 1, "amount": 5}  # not fenced: it is the truth
    assert await attempts.call(second) == {"receipt": 1, "amount": 5}
    assert second.unresolved() is None
    assert bank.calls == [KEY]


async def attempts_after_crash(store: Store, attempts: Attempts) -> AttemptCalls:
    """Lease the job of a lease that expired. It has to run alone."""
    leased = await lease(store, solo=True)
    return attempts.of(leased.token, leased.jobs[0])


async def test_a_job_that_lost_its_lease_calls_nothing(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    raw_db.expire_leases()
    await attempts_after_crash(store, attempts)
    with pytest.raises(LeaseLost):
        await attempts.call(attempt)
    assert bank.calls == []


async def test_a_cancelled_job_calls_nothing(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await store.cancel(1, ACT)
    with pytest.raises(LeaseLost):
        await attempts.call(attempt)
    assert bank.calls == []


async def test_an_intent_waits_for_a_cancellation_in_another_transaction(
    postgres_url: str, bank: Bank
) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        attempts = Attempts(store, bank)
        attempt = await attempts.begin()
        with raw_db.connection() as connection:
            connection.execute("UPDATE onceward.leases SET jobs = '{}'")
            calling = await start_task(attempts.call(attempt))
            assert bank.calls == []
            connection.commit()
            with pytest.raises(LeaseLost):
                await calling
    assert bank.calls == []


async def test_a_cancellation_leaves_an_open_call_unknown_until_its_deadline(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    bank.answers.clear()
    attempts = Attempts(store, bank, retry_safe_for="1h")
    calling = asyncio.create_task(attempts.call(await attempts.begin()))
    await bank.reached.wait()
    before = await only_effect(store)
    await store.cancel(1, ACT)
    after = await only_effect(store)
    assert (after.status, after.call_no, after.deadline_at) == (UNKNOWN, 1, before.deadline_at)
    await store.requeue(1, ACT)
    with pytest.raises(EffectPending):
        await attempts.call(await attempts.next())
    calling.cancel()


async def test_a_worker_does_not_call_after_its_own_deadline(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    attempts = Attempts(store, bank, clock=clock)
    attempt = await attempts.begin()
    start = SqlEffectCalls.start_call

    async def start_and_sleep(self: Any, intent: Any) -> Any:
        started = await start(self, intent)
        clock.seconds += 10
        return started

    monkeypatch.setattr(SqlEffectCalls, "start_call", start_and_sleep)
    with pytest.raises(EffectNotApplied, match="passed before it"):
        await attempts.call(attempt)
    assert bank.calls == []
    assert await effect_state(store) == (FAILED, 1)


async def test_an_error_leaves_the_outcome_unknown(store: Store, bank: Bank) -> None:
    bank.error = ConnectionResetError("reset by peer")
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    with pytest.raises(EffectUnknown, match="nobody knows whether charge was applied") as raised:
        await attempts.call(attempt)
    assert raised.value.needs_operator
    assert attempt.unresolved() is raised.value
    effect = await only_effect(store)
    assert (effect.status, effect.error_message) == (
        UNKNOWN,
        "ConnectionResetError: reset by peer",
    )


@pytest.mark.parametrize("error", [EffectNotApplied("busy"), Refused("no")], ids=repr)
async def test_a_declared_error_means_that_nothing_was_applied(
    store: Store, bank: Bank, error: Exception
) -> None:
    bank.error = error
    attempts = Attempts(store, bank, not_applied=Refused)
    attempt = await attempts.begin()
    with pytest.raises(type(error)):
        await attempts.call(attempt)
    assert await effect_state(store) == (FAILED, 1)
    assert attempt.unresolved() is None
    bank.error = None
    assert await attempts.call(attempt) == {"receipt": 2, "amount": 5}
    assert await effect_state(store) == (SUCCEEDED, 2)


async def test_a_call_that_takes_too_long_is_unknown_despite_its_declaration(
    store: Store, bank: Bank
) -> None:
    bank.answers.clear()
    attempts = Attempts(store, bank, timeout_seconds=0.05, not_applied=(TimeoutError, OSError))
    with pytest.raises(EffectUnknown, match=r"charge did not return within 0\.\d+ s"):
        await attempts.call(await attempts.begin())
    assert await effect_state(store) == (UNKNOWN, 1)


async def test_a_cancelled_handler_leaves_the_outcome_unknown(store: Store, bank: Bank) -> None:
    bank.answers.clear()
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    calling = asyncio.create_task(attempts.call(attempt))
    await bank.reached.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert isinstance(attempt.unresolved(), EffectUnknown)
    await asyncio.gather(*attempt._background)
    assert await effect_state(store) == (UNKNOWN, 1)


async def test_the_refusal_of_an_earlier_call_changes_nothing(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    """The late error of a first worker must not reopen the call of a second one."""
    attempts = Attempts(store, bank, retry_safe_for="1h", not_applied=Refused)
    attempt = await attempts.begin()
    bank.error = Refused("late")
    first = await open_call(attempts, attempt)
    first_answers, bank.answers = bank.answers, asyncio.Event()
    pass_deadline(raw_db)
    second = await open_call(attempts, attempt)
    assert await effect_state(store) == (PENDING, 2)
    first_answers.set()
    with pytest.raises(EffectUnknown):
        await first
    assert await effect_state(store) == (PENDING, 2)
    second.cancel()


async def test_a_late_success_of_an_earlier_call_is_the_truth(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await attempts.begin()
    first = await open_call(attempts, attempt)
    first_answers, bank.answers = bank.answers, asyncio.Event()
    pass_deadline(raw_db)
    second = await open_call(attempts, attempt)
    first_answers.set()
    assert (await first)["amount"] == 5
    assert await effect_state(store) == (SUCCEEDED, 2)
    bank.error = Refused("late")
    bank.answers.set()
    with pytest.raises(EffectUnknown):
        await second
    assert await effect_state(store) == (SUCCEEDED, 2)


async def test_an_outcome_is_stored_although_the_store_was_away(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_STORE_DELAYS", (0.0,) * 3)
    commit = type(store)._commit_call  # type: ignore[attr-defined]
    failures = [OutcomeUnknown("lost"), OutcomeUnknown("lost")]

    async def commit_or_fail(self: Any, name: str, /, **parameters: object) -> Any:
        if name == "record_success" and failures:
            raise failures.pop()
        return await commit(self, name, **parameters)

    monkeypatch.setattr(type(store), "_commit_call", commit_or_fail)
    attempts = Attempts(store, bank)
    assert await attempts.call(await attempts.begin()) == {"receipt": 1, "amount": 5}
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_an_outcome_is_stored_after_the_handler_has_given_up(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process knows the outcome, and outlives the outage."""
    monkeypatch.setattr(calls, "_STORE_DELAYS", (0.01,))
    monkeypatch.setattr(calls, "STORE_SECONDS", 0.1)
    is_back = asyncio.Event()
    store_success = SqlEffectCalls.record_success

    async def fail_until_back(self: Any, *outcome: Any) -> None:
        if not is_back.is_set():
            raise OutcomeUnknown("the database is gone")
        await store_success(self, *outcome)

    monkeypatch.setattr(SqlEffectCalls, "record_success", fail_until_back)
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    with pytest.raises(EffectUnknown, match="charge returned, but its result could not be stored"):
        await attempts.call(attempt)
    assert isinstance(attempt.unresolved(), EffectUnknown)
    assert await effect_state(store) == (PENDING, 1)
    is_back.set()
    await asyncio.gather(*attempt._background)
    assert await effect_state(store) == (SUCCEEDED, 1)
    assert await attempts.call(attempt) == {"receipt": 1, "amount": 5}


async def test_an_intent_whose_commit_is_unconfirmed_is_withdrawn(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent, so nobody has to find out whether it happened."""
    start = SqlEffectCalls.start_call

    async def start_and_lose(self: Any, intent: Any) -> Any:
        await start(self, intent)
        raise OutcomeUnknown("the connection was lost")

    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    with monkeypatch.context() as patch:
        patch.setattr(SqlEffectCalls, "start_call", start_and_lose)
        with pytest.raises(OutcomeUnknown) as raised:
            await attempts.call(attempt)
    assert attempt.unresolved() is raised.value  # the job is postponed
    await asyncio.gather(*attempt._background)
    assert await effect_state(store) == (FAILED, 1)
    assert await attempts.call(attempt) == {"receipt": 1, "amount": 5}
    assert attempt.unresolved() is None


RESULTS: Final[dict[str, tuple[object, object]]] = {
    "none": (None, None),
    "tuple": ((1, 2.5, "ü"), [1, 2.5, "ü"]),
    "large number": ({"n": 2**70, "none": None}, {"n": 2**70, "none": None}),
    "longest": ("x" * (MAX_RESULT_BYTES - 2), "x" * (MAX_RESULT_BYTES - 2)),
}


async def test_the_first_call_returns_what_is_stored(
    store: Store, bank: Bank, subtests: pytest.Subtests
) -> None:
    async def charge(name: str) -> object:
        return RESULTS[name][0]

    attempt = await Attempts(store, bank, function=charge).begin()
    for name, (_, stored) in RESULTS.items():
        with subtests.test(name):
            call = attempt.check(name, charge, (name,), {})
            assert [await attempt.call(call) for _ in range(2)] == [stored, stored]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (object(), "an object"),
        ({"lone": "\ud800"}, "no JSON"),
        ("x" * MAX_RESULT_BYTES, f"{MAX_RESULT_BYTES + 2} bytes of JSON; the limit is"),
    ],
    ids=["object", "surrogate", "too long"],
)
async def test_a_result_that_cannot_be_stored_fails_the_job_and_is_not_called_twice(
    store: Store, bank: Bank, value: object, fault: str
) -> None:
    async def charge(amount: int) -> object:
        bank.calls.append(str(amount))
        return value

    attempts = Attempts(store, bank, function=charge)
    attempt = await attempts.begin()
    for _ in range(2):
        with pytest.raises(PermanentError, match="its result cannot be stored") as raised:
            await attempts.call(attempt)
        assert fault in str(raised.value)
        assert attempt.unresolved() is None
    assert bank.calls == ["5"]
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_a_success_is_stored_after_the_coroutine_of_a_sync_function_has_run(
    store: Store, bank: Bank
) -> None:
    def charge(amount: int) -> Any:
        return bank.charge(amount, idempotency_key=KEY)

    attempts = Attempts(store, bank, function=charge)
    attempt = await attempts.begin()
    assert await attempts.call(attempt) == {"receipt": 1, "amount": 5}
    assert bank.calls == [KEY]
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_a_key_belongs_to_one_function(store: Store, bank: Bank) -> None:
    async def refund(amount: int) -> None:
        raise AssertionError(amount)

    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await attempts.call(attempt)
    with pytest.raises(PermanentError, match="the function charge has used this key"):
        await attempt.call(attempt.check(KEY, refund, (5,), {}))


async def test_a_key_of_a_call_cannot_be_marked(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank)
    await attempts.call(await attempts.begin())
    async with working(store) as work:
        with pytest.raises(PermanentError, match="the function charge has used this key"):
            await work.effects(1).once(KEY)


async def test_a_key_of_a_mark_cannot_be_called(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    async with working(store) as work:
        assert await work.effects(1).once(KEY)
        await work.unit.commit()
    with pytest.raises(PermanentError, match=r"effects\.once has used this key"):
        await attempts.call(attempt)
    assert bank.calls == []


async def test_arguments_that_do_not_fit_are_refused_before_the_intent(
    store: Store, bank: Bank, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "missing a required argument: 'amount'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"currency": "EUR"}, "unexpected keyword argument 'currency'"),
        ((1,), {"idempotency_key": "mine"}, "idempotency_key"),
    ]
    attempt = await Attempts(store, bank).begin()
    for arguments, named, fault in cases:
        with subtests.test(fault):
            with pytest.raises(PermanentError, match=fault):
                await attempt.call(attempt.check(KEY, bank.charge, arguments, named))
            assert bank.calls == []


async def test_only_a_function_with_a_name_can_be_called(
    store: Store, bank: Bank, subtests: pytest.Subtests
) -> None:
    attempt = await Attempts(store, bank).begin()
    for name, function in {"lambda": lambda: None, "text": "charge", "none": None}.items():
        with subtests.test(name), pytest.raises(PermanentError, match=r"effects\.call: the "):
            await attempt.call(attempt.check(KEY, function, (), {}))
