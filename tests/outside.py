"""Another system that effects act on, and attempts of jobs that call it."""

import asyncio
from collections.abc import Callable
from typing import Any

from onceward.model.admin import EffectItem
from onceward.model.effects import EffectStatus
from onceward.model.jobs import Job
from onceward.ports import Store
from onceward.runtime.clock import Clock
from onceward.work.outside_calls import AttemptCalls
from onceward.work.outside_effects import OutsideEffects, make_effect
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
