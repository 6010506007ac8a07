"""Warnings about handlers and sources that an operator paused, so that no pause is forgotten."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Final

from onceward.errors import StoreError
from onceward.model.admin import Pausable, Pause
from onceward.ports.watching import Pauses
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable

_log = logging.getLogger("onceward.workers")

_EFFECTS: Final = {
    Pausable.HANDLER: "its jobs wait",
    Pausable.SOURCE: "its events are recorded, and their jobs wait",
}


class PauseWatch:
    """Logs when a pause begins and ends, in whichever process the operator acted."""

    def __init__(self, store: Pauses) -> None:
        self._store = store
        self._pauses: dict[tuple[Pausable, str], Pause] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the last read, one for each kind. They are public: they have no names."""
        by_kind = {
            kind: [pause.paused_at for pause in self._pauses.values() if pause.kind is kind]
            for kind in Pausable
        }
        return tuple(
            f"{_count(kind, len(times))} paused by an operator (since {_time(min(times))}), "
            f"and jobs wait. GET /admin/{kind}s has the names."
            for kind, times in by_kind.items()
            if times
        )

    async def refresh(self) -> None:
        """Read the pauses; log those that began or ended since the last read."""
        try:
            found = {(pause.kind, pause.name): pause for pause in await self._store.pauses()}
        except StoreError:
            return
        for key, pause in found.items():
            if self._pauses.get(key) != pause:
                _log.warning("%s", _text(pause), extra=_fields(pause))
        for key, pause in self._pauses.items():
            if key not in found:
                message = "%s %r is no longer paused."
                _log.info(message, pause.kind.capitalize(), pause.name, extra=_fields(pause))
        self._pauses = found


def _text(pause: Pause) -> str:
    name = printable(pause.name)
    return (
        f"{pause.kind.capitalize()} {pause.name!r} is paused by an operator "
        f"(since {_time(pause.paused_at)}): {_EFFECTS[pause.kind]} until "
        f"POST /admin/{pause.kind}s/{name}/resume. "
        f"GET /admin/audit?subject={pause.kind}:{name} says who paused it, and why."
    )


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _count(kind: Pausable, number: int) -> str:
    return f"A {kind} is" if number == 1 else f"{number} {kind}s are"


def _fields(pause: Pause) -> LogFields:
    if pause.kind is Pausable.SOURCE:
        return LogFields(source=pause.name)
    return LogFields(handler=pause.name)
