"""Named points at which a test can stop, kill or break a process. Inert when unset.

``ONCEWARD_FAILPOINTS=name:action:n`` acts when `name` is reached for the n-th time; several are
separated by commas, and ``*`` stands for any point. The actions: ``kill`` (SIGKILL, as if the power
of the process were cut), ``stop`` (SIGSTOP, to make a zombie) and ``raise``. Each says on standard
error where it acts.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Final, Literal, cast

from onceward.errors import ConfigurationError, OncewardError

Action = Literal["kill", "stop", "raise"]

POINTS: Final = (
    "receive.read",
    "receive.verified",
    "record.writing",
    "record.written",
    "record.committed",
    "receive.answered",
    "claim.leased",
    "handle.started",
    "handle.statement",
    "effect.written",
    "handle.returned",
    "settle.written",
    "settle.committed",
    "operate.written",
    "operate.committed",
)

_STDERR: Final = 2


class FailpointReached(OncewardError):
    """What the action ``raise`` raises."""


@dataclass
class _Trap:
    name: str
    action: Action
    countdown: int


class Failpoints:
    """The points of one process. Without traps, `reach` does nothing."""

    def __init__(self, spec: str = "") -> None:
        self._traps = [_parse(part) for part in spec.split(",") if part.strip()]

    @property
    def armed(self) -> bool:
        """Whether there is a trap anywhere."""
        return bool(self._traps)

    def reach(self, name: str) -> None:
        """Say that execution is at `name`; acts if a trap waits there."""
        for trap in self._traps:
            if trap.name in ("*", name):
                trap.countdown -= 1
                if trap.countdown == 0:
                    _act(trap.action, name)


def _parse(part: str) -> _Trap:
    name, _, rest = part.strip().partition(":")
    action, _, count = rest.partition(":")
    if name != "*" and name not in POINTS:
        msg = f"ONCEWARD_FAILPOINTS: no point is called {name!r}; there are {', '.join(POINTS)}"
        raise ConfigurationError(msg)
    if action not in ("kill", "stop", "raise") or not _is_count(count or "1"):
        msg = f"ONCEWARD_FAILPOINTS: {part!r} is not name:kill|stop|raise:n"
        raise ConfigurationError(msg)
    return _Trap(name, cast("Action", action), int(count or 1))


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _act(action: Action, name: str) -> None:
    os.write(_STDERR, f"failpoint {name}: {action}\n".encode())  # at once: the process may end here
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise FailpointReached(name)
