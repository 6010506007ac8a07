"""Named points at which a test can kill, stop or fail a process. Inert when unset.

``ONCEWARD_FAILPOINTS=name:action:n`` triggers when `name` is reached for the n-th time. Several
failpoints are separated by commas, and ``*`` matches any point. The actions are ``kill`` (SIGKILL),
``stop`` (SIGSTOP, so that its leases expire) and ``raise``. Before it acts, a failpoint writes its
name and action to standard error.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Final, Literal, cast

from onceward.errors import ConfigurationError, OncewardError

Action = Literal["kill", "stop", "raise"]

REDIS_POINTS: Final = ("redis.setting",)
"""Points that only a process with Redis reaches."""

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
    "effect.intended",
    "effect.called",
    "effect.stored",
    "handle.returned",
    "settle.written",
    "settle.committed",
    "operate.written",
    "operate.committed",
    "purge.written",
    "purge.committed",
    "archive.written",
    "archive.verified",
    "archive.recorded",
    *REDIS_POINTS,
)

_STDERR: Final = 2


class FailpointReached(OncewardError):
    """The exception of the action ``raise``."""


@dataclass
class _Failpoint:
    name: str
    action: Action
    countdown: int


class Failpoints:
    """The armed failpoints of one process. Without any, `reach` does nothing."""

    def __init__(self, spec: str = "") -> None:
        self._armed = [_parse(part) for part in spec.split(",") if part.strip()]

    @property
    def armed(self) -> bool:
        """Whether any failpoint is armed."""
        return bool(self._armed)

    def reach(self, name: str) -> None:
        """Count that `name` was reached, and trigger the failpoints that are due."""
        for failpoint in self._armed:
            if failpoint.name in ("*", name):
                failpoint.countdown -= 1
                if failpoint.countdown == 0:
                    _trigger(failpoint.action, name)


def _parse(part: str) -> _Failpoint:
    name, _, rest = part.strip().partition(":")
    action, _, count = rest.partition(":")
    if name != "*" and name not in POINTS:
        msg = f"ONCEWARD_FAILPOINTS: unknown point {name!r}; the points are {', '.join(POINTS)}"
        raise ConfigurationError(msg)
    if action not in ("kill", "stop", "raise") or not _is_count(count or "1"):
        msg = f"ONCEWARD_FAILPOINTS: {part!r} is not of the form name:kill|stop|raise:n"
        raise ConfigurationError(msg)
    return _Failpoint(name, cast("Action", action), int(count or 1))


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _trigger(action: Action, name: str) -> None:
    # Unbuffered, because the process may end here.
    os.write(_STDERR, f"failpoint {name}: {action}\n".encode())
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise FailpointReached(name)
