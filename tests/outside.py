"""Another system that effects act on, and attempts of jobs that call it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onceward.errors import EffectNotApplied, EffectUnknown, OutcomeUnknown
from onceward.model.admin import EffectItem
from onceward.model.effects import EffectStatus
from onceward.model.jobs import Job
from onceward.ports import Store
from onceward.runtime.clock import Clock
from onceward.store.effect_calls import SqlEffectCalls
from onceward.work.outside.calls import AttemptCalls
from onceward.work.outside.declaration import OutsideEffects, make_effect
from support.database import RawDatabase
from tests.factories import EVERYTHING, arrival, lease, make_outside_calls, record

KEY = "charge:1"


class Bank:
    """Another system. It counts the calls that reach it, and may lose its answers."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.reached = asyncio.Event()
        self.answers = asyncio.Event()
        """Set when a call may return."""
        self.answers.set()
        self.error: Exception | None = None

    async def charge(self, amount: int, *, idempotency_key: str) -> dict[str, Any]:
        """Charge an amount."""
        self.calls.append(idempotency_key)
        self.reached.set()
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return {"receipt": len(self.calls), "amount": amount}


class Attempts:
    """Attempts of jobs that call a bank, with one declaration of the effect."""

    def __init__(
        self,
        store: Store,
        bank: Bank,
        *,
        clock: Clock | None = None,
        function: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.store = store
        self.bank = bank
        self.function = function or bank.charge
        effects = OutsideEffects()
        effects.add(make_effect(self.function, name="charge", **options))
        self.outside = make_outside_calls(store, effects, clock)

    async def begin(self, event_id: str = "evt_1") -> AttemptCalls:
        """Record an event, lease its job, and begin an attempt."""
        await record(self.store, arrival(event_id))
        return await self.next()

    async def next(self) -> AttemptCalls:
        """Lease the next job, and begin an attempt."""
        leased = await lease(self.store)
        return self.of(leased.token, leased.jobs[0])

    def of(self, token: str, job: Job) -> AttemptCalls:
        """Begin an attempt of a job under some lease."""
        return self.outside.attempt(token, job)

    async def call(self, attempt: AttemptCalls, amount: int = 5) -> Any:
        """Charge the amount under the key."""
        return await attempt.call(attempt.check(KEY, self.function, (amount,), {}))


async def only_effect(store: Store) -> EffectItem:
    """Return the only effect."""
    (effect,) = await store.effects(EVERYTHING)
    return effect


async def effect_state(store: Store) -> tuple[EffectStatus, int]:
    """Return the status of the only effect, and the number of its last call."""
    effect = await only_effect(store)
    return effect.status, effect.call_no


def pass_deadline(raw_db: RawDatabase) -> None:
    """Let the deadline of every call pass."""
    raw_db.rows(f"UPDATE onceward.effects SET deadline_at = {raw_db.past}")  # noqa: S608 - no outside input


def begin_long_ago(raw_db: RawDatabase) -> None:
    """Let the first call of every effect have been long ago."""
    raw_db.rows(f"UPDATE onceward.effects SET first_call_at = {raw_db.past}")  # noqa: S608


async def lose_answer(attempts: Attempts, raw_db: RawDatabase) -> AttemptCalls:
    """Make a call whose answer is lost, and let its deadline pass."""
    attempt = await attempts.begin()
    await lose(attempts, attempt)
    pass_deadline(raw_db)
    return attempt


async def lose(attempts: Attempts, attempt: AttemptCalls) -> EffectUnknown:
    """Make a call whose answer is lost."""
    attempts.bank.error = ConnectionResetError("lost")
    with pytest.raises(EffectUnknown) as raised:
        await attempts.call(attempt)
    attempts.bank.error = None
    return raised.value


async def refuse(attempts: Attempts, attempt: AttemptCalls) -> None:
    """Make a call that is certainly not applied."""
    attempts.bank.error = EffectNotApplied("busy")
    with pytest.raises(EffectNotApplied):
        await attempts.call(attempt)
    attempts.bank.error = None


async def open_call(attempts: Attempts, attempt: AttemptCalls) -> "asyncio.Task[Any]":
    """Start a call that reaches the bank and waits there for its own answer."""
    attempts.bank.answers = asyncio.Event()
    attempts.bank.reached.clear()
    calling = asyncio.create_task(attempts.call(attempt))
    await attempts.bank.reached.wait()
    return calling


async def end(*calls: "asyncio.Task[Any]") -> None:
    """Cancel calls that are open."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def after(
    monkeypatch: pytest.MonkeyPatch, name: str, then: Callable[[], Awaitable[object]]
) -> None:
    """Do something once, after a method of the store has committed and before it returns."""
    method = getattr(SqlEffectCalls, name)

    async def run(self: Any, *arguments: Any, **named: Any) -> Any:
        result = await method(self, *arguments, **named)
        monkeypatch.setattr(SqlEffectCalls, name, method)
        await then()
        return result

    monkeypatch.setattr(SqlEffectCalls, name, run)


async def lose_connection() -> None:
    """Raise the error of a commit that was not confirmed."""
    raise OutcomeUnknown("the connection was lost")
