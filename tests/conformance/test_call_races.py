"""Outside calls beside others: earlier calls, lost leases and commits, cancellations, people."""

import asyncio
from typing import Any

import pytest

from onceward.errors import (
    EffectNotApplied,
    EffectUnknown,
    LeaseLost,
    OutcomeUnknown,
)
from onceward.model.effects import (
    EffectStatus,
    NotApplied,
    Resolution,
    ResolvedOutcome,
)
from onceward.ports import Store
from onceward.store.effect_calls import SqlEffectCalls
from support.database import RawDatabase
from tests.factories import ACT, lease, opened
from tests.outside import (
    KEY,
    Attempts,
    Bank,
    after,
    effect_state,
    end,
    lose_answer,
    lose_connection,
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


# Earlier calls that end late.


async def test_a_late_error_of_an_earlier_call_leaves_the_last_one_pending(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await attempts.begin()
    first = await open_call(attempts, attempt)
    first_answers = bank.answers
    pass_deadline(raw_db)
    second = await open_call(attempts, attempt)
    bank.error = ConnectionResetError("late")
    first_answers.set()
    with pytest.raises(EffectUnknown):
        await first
    effect = await only_effect(store)
    assert (effect.status, effect.call_no, effect.error_message) == (PENDING, 2, None)
    await end(second)


async def test_the_first_result_that_was_stored_stays(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    """A handler may have acted on it: a later answer must not change what calls return."""
    results = iter(["second", "first"])

    async def charge(amount: int, *, idempotency_key: str) -> str:
        assert (amount, idempotency_key) == (5, KEY)
        bank.reached.set()
        await bank.answers.wait()
        return next(results)

    attempts = Attempts(store, bank, function=charge, retry_safe_for="1h")
    attempt = await attempts.begin()
    first = await open_call(attempts, attempt)
    first_answers = bank.answers
    pass_deadline(raw_db)
    second = await open_call(attempts, attempt)
    bank.answers.set()
    assert await second == "second"
    first_answers.set()
    await first
    assert await attempts.call(attempt) == "second"


async def test_a_late_success_is_the_truth_over_a_persons_answer(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    calling = await open_call(attempts, await attempts.begin())
    pass_deadline(raw_db)
    assert await store.resolve_effect(1, Resolution(DID_NOT_HAPPEN, call_no=1), ACT)
    assert await effect_state(store) == (FAILED, 1)
    bank.answers.set()
    assert await calling == {"receipt": 1, "amount": 5}
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_an_error_does_not_reopen_what_a_person_has_answered(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    calling = await open_call(attempts, await attempts.begin())
    pass_deadline(raw_db)
    assert await store.resolve_effect(1, Resolution(DID_NOT_HAPPEN, call_no=1), ACT)
    bank.error = ConnectionResetError("late")
    bank.answers.set()
    with pytest.raises(EffectUnknown):
        await calling
    assert await effect_state(store) == (FAILED, 1)


async def test_a_refusal_does_not_change_a_persons_answer(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, bank)
    calling = await open_call(attempts, await attempts.begin())
    pass_deadline(raw_db)
    assert await store.resolve_effect(1, Resolution(ResolvedOutcome.HAPPENED), ACT)
    bank.error = EffectNotApplied("busy")
    bank.answers.set()
    with pytest.raises(EffectUnknown):
        await calling
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_an_answer_of_reconcile_is_about_the_call_that_it_was_asked_for(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    """Another worker has called meanwhile, and its answer is lost too: ask again."""
    asked = []

    def reconcile(key: str, _amount: int) -> NotApplied:
        asked.append(key)
        if len(asked) == 1:
            raw_db.rows("UPDATE onceward.effects SET call_no = call_no + 1")
        return NotApplied()

    attempts = Attempts(store, bank, reconcile=reconcile)
    attempt = await lose_answer(attempts, raw_db)
    await attempts.call(attempt)
    assert asked == [KEY, KEY]
    assert await effect_state(store) == (SUCCEEDED, 3)


@pytest.mark.parametrize("policy", ["retry_safe_for", "reconcile"])
async def test_an_effect_that_succeeds_after_the_look_is_not_called_again(
    store: Store, bank: Bank, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """A late answer, or a person, came before the repeated call."""
    options: dict[str, Any] = {"retry_safe_for": "1h", "reconcile": lambda *_: NotApplied()}
    attempts = Attempts(store, bank, **{policy: options[policy]})
    attempt = await lose_answer(attempts, raw_db)

    async def succeed() -> None:
        raw_db.rows(
            "UPDATE onceward.effects SET status = 'succeeded', result = '7', error_message = NULL"
        )

    after(monkeypatch, "load_call", succeed)
    assert await attempts.call(attempt) == 7
    assert bank.calls == [KEY]


# Cancellations.


async def test_the_refusal_of_a_cancelled_jobs_call_is_known(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank)
    calling = await open_call(attempts, await attempts.begin())
    await store.cancel(1, ACT)
    assert await effect_state(store) == (UNKNOWN, 1)
    bank.error = EffectNotApplied("busy")
    bank.answers.set()
    with pytest.raises(EffectNotApplied):
        await calling
    assert await effect_state(store) == (FAILED, 1)


async def test_a_cancellation_leaves_what_is_known(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await attempts.call(attempt)
    await store.cancel(1, ACT)
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_a_handler_that_is_cancelled_while_its_result_is_stored_loses_nothing(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    storing, goes_on = asyncio.Event(), asyncio.Event()
    record_success = SqlEffectCalls.record_success

    async def record_slowly(self: Any, *arguments: Any) -> None:
        storing.set()
        await goes_on.wait()
        await record_success(self, *arguments)

    monkeypatch.setattr(SqlEffectCalls, "record_success", record_slowly)
    calling = asyncio.create_task(attempts.call(attempt))
    await storing.wait()
    await end(calling)
    goes_on.set()
    await asyncio.gather(*attempt._background)
    assert await effect_state(store) == (SUCCEEDED, 1)


async def test_an_intent_whose_commit_is_cancelled_is_withdrawn(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    committed = asyncio.Event()

    async def hang() -> None:
        committed.set()
        await asyncio.sleep(30)

    after(monkeypatch, "start_call", hang)
    calling = asyncio.create_task(attempts.call(attempt))
    await committed.wait()
    await end(calling)
    await asyncio.gather(*attempt._background)
    assert await effect_state(store) == (FAILED, 1)
    assert bank.calls == []


# Withdrawals.


async def test_a_withdrawn_repetition_says_nothing_about_the_first_call(
    store: Store, bank: Bank, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(store, bank, retry_safe_for="1h")
    attempt = await lose_answer(attempts, raw_db)
    after(monkeypatch, "restart_call", lose_connection)
    with pytest.raises(OutcomeUnknown):
        await attempts.call(attempt)
    await asyncio.gather(*attempt._background)
    assert await effect_state(store) == (UNKNOWN, 2)
    assert bank.calls == [KEY]


async def test_a_withdrawal_after_a_reconcile_is_known(
    store: Store, bank: Bank, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(store, bank, reconcile=lambda *_: NotApplied())
    attempt = await lose_answer(attempts, raw_db)
    after(monkeypatch, "restart_call", lose_connection)
    with pytest.raises(OutcomeUnknown):
        await attempts.call(attempt)
    await asyncio.gather(*attempt._background)
    assert await effect_state(store) == (FAILED, 2)


async def test_a_withdrawal_of_a_second_call_is_by_its_own_nonce(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()
    await refuse(attempts, attempt)
    after(monkeypatch, "start_call", lose_connection)
    with pytest.raises(OutcomeUnknown):
        await attempts.call(attempt)
    await asyncio.gather(*attempt._background)
    assert await effect_state(store) == (FAILED, 2)


async def test_a_withdrawal_leaves_the_call_of_another_job(
    store: Store, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit did not arrive, and another job has called meanwhile."""
    attempts = Attempts(store, bank)
    first = await attempts.begin()
    second = await attempts.begin("evt_2")
    calling = await open_call(attempts, second)

    async def fail(self: Any, intent: Any) -> None:
        raise OutcomeUnknown("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(SqlEffectCalls, "start_call", fail)
        with pytest.raises(OutcomeUnknown):
            await attempts.call(first)
    await asyncio.gather(*first._background)
    assert await effect_state(store) == (PENDING, 1)
    await end(calling)


@pytest.mark.parametrize(
    ("status", "withdrawn"), [("unknown", FAILED), ("succeeded", SUCCEEDED)], ids=str
)
async def test_a_withdrawal_changes_only_an_open_call(  # noqa: PLR0917 - fixtures
    store: Store,
    bank: Bank,
    raw_db: RawDatabase,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    withdrawn: EffectStatus,
) -> None:
    """A cancellation, or a person, may come before the withdrawal."""
    attempts = Attempts(store, bank)
    attempt = await attempts.begin()

    async def change_and_lose() -> None:
        raw_db.rows(f"UPDATE onceward.effects SET status = '{status}'")  # noqa: S608 - no outside input
        await lose_connection()

    after(monkeypatch, "start_call", change_and_lose)
    with pytest.raises(OutcomeUnknown):
        await attempts.call(attempt)
    await asyncio.gather(*attempt._background)
    assert (await only_effect(store)).status is withdrawn


# The lease, between the look at an effect and its next call.


async def test_a_job_that_loses_its_lease_while_it_reconciles_calls_nothing(
    store: Store, bank: Bank, raw_db: RawDatabase
) -> None:
    async def reconcile(*_: object) -> NotApplied:
        raw_db.expire_leases()
        await lease(store, solo=True)
        return NotApplied()

    attempts = Attempts(store, bank, reconcile=reconcile)
    attempt = await lose_answer(attempts, raw_db)
    with pytest.raises(LeaseLost):
        await attempts.call(attempt)
    assert bank.calls == [KEY]
    assert await effect_state(store) == (UNKNOWN, 1)


async def test_a_repetition_waits_for_a_cancellation_in_another_transaction(
    postgres_url: str, bank: Bank
) -> None:
    """The cancellation begins after `start_call`, which would wait for it too."""
    raw_db = RawDatabase(postgres_url)
    reconciled, cancelled = asyncio.Event(), asyncio.Event()

    async def reconcile(*_: object) -> NotApplied:
        reconciled.set()
        await cancelled.wait()
        return NotApplied()

    async with opened(postgres_url) as store:
        attempts = Attempts(store, bank, reconcile=reconcile)
        attempt = await lose_answer(attempts, raw_db)
        calling = asyncio.create_task(attempts.call(attempt))
        await reconciled.wait()
        with raw_db.connection() as connection:
            connection.execute("UPDATE onceward.leases SET jobs = '{}'")
            cancelled.set()
            await asyncio.sleep(0.1)
            assert not calling.done()
            connection.commit()
            with pytest.raises(LeaseLost):
                await calling
    assert bank.calls == [KEY]


async def test_a_lease_that_does_not_name_the_job_is_not_its_own(store: Store, bank: Bank) -> None:
    attempts = Attempts(store, bank)
    first = await attempts.begin()
    second = await attempts.begin("evt_2")
    with pytest.raises(LeaseLost):
        await attempts.call(attempts.of(second._token, first._job))
    assert bank.calls == []
