"""A handler's effects: things that must happen once."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, NoReturn

from onceward.errors import PermanentError
from onceward.model.effects import reserved_key_fault
from onceward.model.events import invalid_text_reason
from onceward.runtime.code_location import awaiting_location
from onceward.runtime.value_kind import kind_of
from onceward.work.outside.calls import AttemptCalls, NoCalls
from onceward.work.running.transaction import UnitOfWork

EXAMPLE_KEY: Final = 'f"mail:{event.id}"'


class EffectContext:
    """The attempt that an effect belongs to."""

    __slots__ = ("_calls", "_job", "unit")

    def __init__(self, unit: UnitOfWork, job: int, calls: AttemptCalls | NoCalls) -> None:
        self.unit = unit
        self._job = job
        self._calls = calls

    async def once(self, key: str, reference: str | None) -> bool:
        """Mark an effect; see `Effects.once`."""
        self._check("effects.once", "key", key)
        if fault := reserved_key_fault(key):
            self._refuse(f"effects.once: {fault}")
        if reference is not None:
            self._check("effects.once", "reference", reference)
        return await self.unit.mark_effect(self._job, key, reference)

    async def call(
        self, key: str, function: object, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Make an outside call; see `Effects.call`."""
        self._check("effects.call", "key", key)
        if isinstance(self._calls, NoCalls):
            self._refuse(self._calls.value)
        with self.unit.outside_call():
            try:
                invocation = self._calls.check(key, function, arguments, named)
            except PermanentError as error:
                self._refuse(str(error))
            return await self._calls.call(invocation)

    def _check(self, call: str, name: str, text: object) -> None:
        """Raise PermanentError with the handler's line for an unusable text."""
        if not isinstance(text, str):
            fault = f"is {kind_of(text)}; pass a text such as {EXAMPLE_KEY}"
            self._refuse(f"{call}: the {name} {fault}")
        if reason := invalid_text_reason(text):
            self._refuse(f"{call}: the {name} {reason}")

    def _refuse(self, text: str) -> NoReturn:
        line = awaiting_location(sys._getframe(1)) or self.unit.location()  # noqa: SLF001
        raise PermanentError(f"{line}: {text}")


class Effects:
    """The effects of one job, each under an idempotency key that is unique in the whole inbox."""

    def __init__(self, context: EffectContext) -> None:
        self._context = context
        self._calls = context.unit.calls

    def once(self, key: str, *, reference: str | None = None) -> Coroutine[Any, Any, bool]:
        """Mark an effect in the handler's transaction. Return True for the first mark.

        The mark commits with the handler's writes. If an open transaction has marked the same key,
        wait until it ends. Raise PermanentError for an unusable key or reference.
        """
        call = self._context.once(key, reference)
        return self._calls.note("effects.once", call, sys._getframe(1))  # noqa: SLF001

    def call(
        self, key: str, function: Any, /, *arguments: Any, **named: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call a function that acts on another system, once for this key in the whole inbox.

        Commit the intent, call the function, commit its result, and return the result as JSON has
        it. Later calls with the same key return the stored result, in every attempt and job. If it
        is not known whether a call was applied, the policy of ``@inbox.effect`` decides; without
        one the job fails and waits for a person. Use it before the first statement of `tx`.
        """
        call = self._context.call(key, function, arguments, named)
        return self._calls.note("effects.call", call, sys._getframe(1))  # noqa: SLF001
