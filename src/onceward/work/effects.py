"""A handler's effects: things that must happen once."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any, Final

from onceward.errors import PermanentError
from onceward.model.events import invalid_text_reason
from onceward.runtime.code_location import awaiting_location
from onceward.runtime.value_kind import kind_of
from onceward.work.transaction import UnitOfWork

EXAMPLE_KEY: Final = 'f"mail:{event.id}"'


class Effects:
    """The effects of one job, each under an idempotency key that is unique in the whole inbox."""

    def __init__(self, unit: UnitOfWork, job: int) -> None:
        self._unit = unit
        self._job = job

    def once(self, key: str, *, reference: str | None = None) -> Coroutine[Any, Any, bool]:
        """Mark an effect in the handler's transaction. Return True for the first mark.

        The mark commits with the handler's writes. If an open transaction has marked the same key,
        wait until it ends. Raise PermanentError for an unusable key or reference.
        """
        call = mark_once(self._unit, self._job, key, reference)
        return self._unit.calls.note("effects.once", call, sys._getframe(1))  # noqa: SLF001


async def mark_once(unit: UnitOfWork, job: int, key: str, reference: str | None) -> bool:
    """Mark an effect of a job; see `Effects.once`."""
    faults = [("key", _fault(key))]
    if reference is not None:
        faults.append(("reference", _fault(reference)))
    for name, fault in faults:
        if fault:
            line = awaiting_location(sys._getframe()) or unit.location()  # noqa: SLF001
            message = f"{line}: effects.once: the {name} {fault}"
            raise PermanentError(message)
    return await unit.mark_effect(job, key, reference)


def _fault(text: object) -> str | None:
    if isinstance(text, str):
        return invalid_text_reason(text)
    return f"is {kind_of(text)}; pass a text such as {EXAMPLE_KEY}"
