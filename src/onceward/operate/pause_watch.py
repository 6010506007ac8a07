"""Warnings about handlers and sources that an operator paused, so that no pause is forgotten."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
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
_INLINE_EFFECTS: Final = {
    Pausable.HANDLER: (
        "its queued jobs wait, senders of its events to an inline source get 503, and nothing of "
        "these is recorded"
    ),
    Pausable.SOURCE: "its senders get 503, and nothing is recorded",
}

_INLINE_WARNING: Final = ": senders get 503, and nothing is recorded until the resume"


@dataclass(frozen=True, slots=True)
class InlineNames:
    """The inline sources of this process, and the handlers that get events of one."""

    sources: frozenset[str] = frozenset()
    handlers: frozenset[str] = frozenset()

    def have(self, kind: Pausable, name: str) -> bool:
        """Return whether a pause makes senders retry, instead of letting jobs wait."""
        return name in (self.sources if kind is Pausable.SOURCE else self.handlers)

    def note(self, kind: Pausable, name: str) -> str | None:
        """Return what a pause does that it does not do elsewhere, for the operator."""
        if not self.have(kind, name):
            return None
        return f"{_name(kind)} {name!r} is paused: {_INLINE_EFFECTS[kind]} until it is resumed."


NO_INLINE: Final = InlineNames()


class PauseWatch:
    """Logs when a pause begins and ends, in whichever process the operator acted."""

    def __init__(self, store: Pauses, inline: InlineNames = NO_INLINE) -> None:
        self._store = store
        self._inline = inline
        self._pauses: dict[tuple[Pausable, str], Pause] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the last read, one for each kind. They are public: they have no names."""
        groups: dict[tuple[Pausable, bool], list[datetime]] = {
            (kind, is_inline): [] for kind in Pausable for is_inline in (False, True)
        }
        for pause in self._pauses.values():
            is_inline = self._inline.have(pause.kind, pause.name)
            groups[pause.kind, is_inline].append(pause.paused_at)
        return tuple(
            f"{_count(kind, len(times), is_inline=is_inline)} paused by an operator "
            f"(since {_time(min(times))}){_INLINE_WARNING if is_inline else ', and jobs wait'}. "
            f"GET /admin/{kind}s has the names."
            for (kind, is_inline), times in groups.items()
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
                effects = _INLINE_EFFECTS if self._inline.have(*key) else _EFFECTS
                _log.warning("%s", _text(pause, effects), extra=_fields(pause))
        for key, pause in self._pauses.items():
            if key not in found:
                message = "%s %r is no longer paused."
                _log.info(message, _name(pause.kind), pause.name, extra=_fields(pause))
        self._pauses = found


def _text(pause: Pause, effects: Mapping[Pausable, str]) -> str:
    name = printable(pause.name)
    return (
        f"{_name(pause.kind)} {pause.name!r} is paused by an operator "
        f"(since {_time(pause.paused_at)}): {effects[pause.kind]} until "
        f"POST /admin/{pause.kind}s/{name}/resume. "
        f"GET /admin/audit?subject={pause.kind}:{name} says who paused it, and why."
    )


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _name(kind: Pausable) -> str:
    return kind.capitalize()


def _count(kind: Pausable, number: int, *, is_inline: bool) -> str:
    one, several = f"A {kind}", f"{kind}s"
    if is_inline and kind is Pausable.SOURCE:
        one, several = "An inline source", "inline sources"
    elif is_inline:
        one, several = "A handler of an inline source", "handlers of inline sources"
    return f"{one} is" if number == 1 else f"{number} {several} are"


def _fields(pause: Pause) -> LogFields:
    if pause.kind is Pausable.SOURCE:
        return LogFields(source=pause.name)
    return LogFields(handler=pause.name)
