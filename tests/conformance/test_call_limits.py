"""Outside calls at their limits: the window, the deadline, several calls, a lost store."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from onceward.errors import (
    EffectNotApplied,
    EffectPending,
    EffectUnknown,
    PermanentError,
    StoreBlocked,
)
from onceward.model.effects import (
    Applied,
    EffectStatus,
    NotApplied,
    Resolution,
    ResolvedOutcome,
)
from onceward.ports import Store
from onceward.store.effect_calls import SqlEffectCalls
from support.database import RawDatabase
from tests.factories import ACT, FakeClock
from tests.outside import (
    KEY,
    Attempts,
    Bank,
    after,
    begin_long_ago,
    effect_state,
    end,
    lose,
    lose_answer,
    only_effect,
    open_call,
    pass_deadline,
    refuse,
)

PENDING, SUCCEEDED = EffectStatus.PENDING, EffectStatus.SUCCEEDED
FAILED, UNKNOWN = EffectStatus.FAILED, EffectStatus.UNKNOWN
DID_NOT_HAPPEN = ResolvedOutcome.DID_NOT_HAPPEN


@pytest.fixture
def bank() -> Bank:
    return Bank()


# The window and the deadline.


async def test_the_window_begins_with_the_first_call_even_if_that_was_refused(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await attempts.begin()
    await refuse(attempts, attempt)
    begin_long_ago(raw_db)
    await lose(attempts, attempt)
    pass_deadline(raw_db)
    with pytest.raises(EffectUnknown, match="is over; ConnectionResetError: lost") as raised:
        await attempts.call(attempt)
    assert raised.value.needs_operator
    assert bank.calls == [KEY, KEY]


async def test_each_call_has_a_deadline_of_its_own(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await refuse(attempts, attempt)
    pass_deadline(raw_db)
    calling = await open_call(attempts, attempt)
    effect = await only_effect(store)
    assert effect.deadline_at is not None
    assert (effect.deadline_at - effect.updated_at).total_seconds() == pytest.approx(10)
    await end(calling)


async def test_a_repetition_does_not_prolong_the_window(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await lose_answer(attempts, raw_db)
    first = raw_db.value("SELECT first_call_at FROM onceward.effects")
    await lose(attempts, attempt)
    assert raw_db.value("SELECT first_call_at FROM onceward.effects") == first


async def test_a_window_that_ends_after_the_look_needs_a_person(
    store: Store, bank: Bank, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await lose_answer(attempts, raw_db)

    async def end_window() -> None:
        begin_long_ago(raw_db)

    after(monkeypatch, "load_call", end_window)
    with pytest.raises(EffectUnknown, match="is over") as raised:
        await attempts.call(attempt)
    assert raised.value.needs_operator
    assert bank.calls == [KEY]
    assert await effect_state(store) == (UNKNOWN, 1)


@pytest.mark.parametrize(
    "options", [{"retry_safe_for": "1h"}, {"reconcile": lambda *_: Applied(1)}]
)
async def test_a_policy_decides_about_a_call_that_its_process_did_not_live_to_end(
    store: Store, bank: Bank, raw_db: RawDatabase, options: dict[str, Any]
) -> None:
    attempts = Attempts(store, bank, **options)
    attempt = await lose_answer(attempts, raw_db)
    raw_db.rows("UPDATE onceward.effects SET status = 'pending', error_message = NULL")
    await attempts.call(attempt)
    assert (await only_effect(store)).status is SUCCEEDED
    assert attempt.unresolved() is None


async def test_a_suspended_machine_does_not_call_after_its_deadline(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still while the machine is suspended."""

    class SuspendedClock(FakeClock):
        suspended = 0.0

        def boottime(self) -> float:
            return self.seconds + self.suspended

    clock = SuspendedClock()
    attempts = Attempts(store, bank, clock=clock)
    attempt = await attempts.begin()

    async def suspend() -> None:
        clock.suspended = 10.0

    after(monkeypatch, "start_call", suspend)
    with pytest.raises(EffectNotApplied, match="passed before it"):
        await attempts.call(attempt)
    assert bank.calls == []


async def test_a_reconcile_that_hangs_is_given_up_and_nothing_is_called(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    async def reconcile(*_: object) -> NotApplied:
        await asyncio.sleep(30)
        return NotApplied()

    attempts = Attempts(store, bank, reconcile=reconcile, timeout_seconds=0.2)
    attempt = await lose_answer(attempts, raw_db)
    async with asyncio.timeout(5):
        with pytest.raises(EffectUnknown, match="reconcile did not return in time"):
            await attempts.call(attempt)
    assert bank.calls == [KEY]


async def test_the_time_of_a_reconcile_is_not_part_of_the_calls(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    clock = FakeClock()

    async def reconcile(*_: object) -> NotApplied:
        clock.seconds += 11
        return NotApplied()

    attempts = Attempts(store, bank, reconcile=reconcile, clock=clock)
    attempt = await lose_answer(attempts, raw_db)
    assert await attempts.call(attempt) == {"receipt": 2, "amount": 5}


async def test_reconcile_gets_named_arguments_too(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    asked = []

    def reconcile(key: str, **named: object) -> Applied:
        asked.append((key, named))
        return Applied()

    attempts = Attempts(store, bank, reconcile=reconcile)
    attempt = await attempts.begin()
    bank.error = ConnectionResetError("lost")
    with pytest.raises(EffectUnknown):
        await attempt.call(attempt.check(KEY, bank.charge, (), {"amount": 5}))
    pass_deadline(raw_db)
    await attempt.call(attempt.check(KEY, bank.charge, (), {"amount": 5}))
    assert asked == [(KEY, {"amount": 5})]


# Several calls.


async def test_the_call_that_needs_a_person_decides_about_the_job(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await attempts.begin()

    async def refund() -> None:
        raise ConnectionResetError("lost")

    assert not (await lose(attempts, attempt)).needs_operator
    with pytest.raises(EffectUnknown) as final:
        await attempt.call(attempt.check("refund:1", refund, (), {}))
    assert final.value.needs_operator
    assert attempt.unresolved() is final.value


async def test_an_unknown_call_decides_before_one_that_waits(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await attempts.begin()
    other = await attempts.begin("evt_2")
    calling = await open_call(attempts, other)
    with pytest.raises(EffectPending):
        await attempts.call(attempt)
    bank.error = ConnectionResetError("lost")
    bank.answers.set()
    with pytest.raises(EffectUnknown) as unknown:
        await attempt.call(attempt.check("charge:2", bank.charge, (5,), {}))
    assert attempt.unresolved() is unknown.value
    await end(calling)


async def test_an_effect_that_becomes_known_meanwhile_is_looked_at_again(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of another job is refused after this one saw that it is pending."""
    attempts = Attempts(store, bank)
    first = await attempts.begin()
    second = await attempts.begin("evt_2")
    calling = await open_call(attempts, first)
    first_answers, bank.answers = bank.answers, asyncio.Event()
    bank.answers.set()

    async def be_refused() -> None:
        bank.error = EffectNotApplied("busy")
        first_answers.set()
        with pytest.raises(EffectNotApplied):
            await calling
        bank.error = None

    after(monkeypatch, "start_call", be_refused)
    assert await attempts.call(second) == {"receipt": 2, "amount": 5}
    assert (await only_effect(store)).job_id == "2"


async def test_an_effect_that_others_call_again_and_again_is_waited_for(
    store: Store, bank: Bank, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await lose_answer(attempts, raw_db)

    async def restart(self: Any, *_: object, **__: object) -> None:
        """Find the effect changed."""

    monkeypatch.setattr(SqlEffectCalls, "restart_call", restart)
    with pytest.raises(EffectPending, match="again and again") as raised:
        await attempts.call(attempt)
    assert raised.value.seconds == 10
    assert bank.calls == [KEY]


async def test_an_effect_belongs_to_the_job_of_its_last_call(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    """The next job of an ordering key waits for it, and a cancellation interrupts it."""
    attempts = Attempts(store, bank, retry_safe_for="1h")
    await lose_answer(attempts, raw_db)
    calling = await open_call(attempts, await attempts.begin("evt_2"))
    assert (await only_effect(store)).job_id == "2"
    await store.cancel(2, ACT)
    assert await effect_state(store) == (UNKNOWN, 2)
    await end(calling)


async def test_a_refused_call_of_another_function_stays_that_functions(
    store: Store, bank: Bank
) -> None:
    async def refund(amount: int) -> None:
        raise AssertionError(amount)

    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await refuse(attempts, attempt)
    with pytest.raises(PermanentError, match="the function charge has used this key"):
        await attempt.call(attempt.check(KEY, refund, (5,), {}))


async def test_an_effect_that_vanished_blocks_the_call(
    store: Store, bank: Bank, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()

    async def start(self: Any, intent: Any) -> None:
        """Find the effect in another state."""

    monkeypatch.setattr(SqlEffectCalls, "start_call", start)
    with pytest.raises(StoreBlocked):
        await attempts.call(attempt)
    assert bank.calls == []


async def test_a_coroutine_that_nothing_ran_is_no_success(store: Store, bank: Bank) -> None:
    """A sync function, or a decorator, may return the coroutine of a call."""

    def charge(amount: int) -> Any:
        return bank.charge(amount, idempotency_key=KEY)

    attempts = Attempts(store, bank, function=charge)
    assert await attempts.call(await attempts.begin()) == {"receipt": 1, "amount": 5}
    assert bank.calls == [KEY]
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_the_stored_error_of_a_call_shows_no_secret(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank)
    attempts.outside = replace(attempts.outside, secrets=("the-banks-own-password",))
    bank.error = ConnectionResetError("refused the-banks-own-password")
    with pytest.raises(EffectUnknown) as raised:
        await attempts.call(await attempts.begin())
    assert "the-banks-own-password" not in str(raised.value)
    assert "the-banks-own-password" not in str((await only_effect(store)).error_message)


# People.


async def test_a_refusal_after_a_persons_answer_is_known(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    """The answer is about all calls so far: none of them is in doubt any longer."""
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await lose_answer(attempts, raw_db)
    await lose(attempts, attempt)
    pass_deadline(raw_db)
    assert await store.resolve_effect(1, Resolution(DID_NOT_HAPPEN, call_no=2), ACT)
    await refuse(attempts, attempt)
    assert await effect_state(store) == (FAILED, 3)
