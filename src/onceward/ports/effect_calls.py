"""The port of outside calls: their intents and outcomes."""

from __future__ import annotations

from typing import Protocol

from onceward.model.effects import CallIntent, EffectCall, EffectStatus


class EffectCalls(Protocol):
    """The outside calls of effects. Each statement commits by itself."""

    async def start_call(self, intent: CallIntent) -> EffectCall | None:
        """Commit the intent of a call: of a new effect, or of one that was not applied.

        Return None if the effect is in another state, or if the lease does not name the job.
        """

    async def restart_call(
        self, intent: CallIntent, call: EffectCall, *, window_seconds: float | None
    ) -> EffectCall | None:
        """Commit the intent of another call over one whose outcome was unknown.

        Without `window_seconds`, the earlier call is known not to have been applied. With them, the
        other side recognises the key for so long after the first call; the refusal of this call
        then says nothing about the earlier ones. Return None if the effect has changed, if the
        window is over, or if the lease does not name the job.
        """

    async def withdraw_call(self, intent: CallIntent) -> None:
        """Store that an intent whose commit was not confirmed was not sent."""

    async def load_call(self, intent: CallIntent) -> EffectCall:
        """Return the last call of an effect. Raise LeaseLost if the lease does not name the job."""

    async def record_success(
        self, call: EffectCall, result: str | None, error_message: str | None
    ) -> None:
        """Store that an effect was applied: the truth, over any status."""

    async def record_not_applied(self, call: EffectCall, error_message: str) -> EffectStatus:
        """Store that a call was not applied, if it is the last one. Return the effect's status."""

    async def record_unknown(self, call: EffectCall, error_message: str) -> None:
        """Store that the outcome of a call is unknown, if it is the last one and pending."""
