"""A handler's effects: things that must happen once."""

from __future__ import annotations

from onceward.errors import PermanentError
from onceward.model.events import invalid_text_reason
from onceward.work.transaction import UnitOfWork


class Effects:
    """The effects of one job, each under an idempotency key that is unique in the whole inbox."""

    def __init__(self, unit: UnitOfWork, job: int) -> None:
        self._unit = unit
        self._job = job

    async def once(self, key: str, *, reference: str | None = None) -> bool:
        """Mark an effect in the handler's transaction. Return True for the first mark.

        The mark commits with the handler's writes. If an open transaction has marked the same key,
        wait until it ends. Raise PermanentError for an unusable key or reference.
        """
        faults = [("key", _fault(key))]
        if reference is not None:
            faults.append(("reference", _fault(reference)))
        for name, fault in faults:
            if fault:
                message = f"effects.once: the {name} {fault}"
                raise PermanentError(message)
        return await self._unit.mark_effect(self._job, key, reference)


def _fault(text: object) -> str | None:
    return invalid_text_reason(text) if isinstance(text, str) else "is not a text"
