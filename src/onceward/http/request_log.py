"""What the operator is told of requests that went wrong, without letting a sender fill the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from onceward.errors import RequestRefused, SignatureRejected
from onceward.http.errors import status_of
from onceward.http.responses import Answer, Scope, answer
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import locate
from onceward.runtime.redact import printable

_log = logging.getLogger("onceward.http")

SILENT_SECONDS: Final = 1.0
PATHS_MOST: Final = 100
"""How many paths are told apart; who tries more has them told together."""
INTERNAL: Final[Answer] = answer(500, {"error": "internal", "message": "An error; see the log."})


@dataclass(slots=True)
class _Told:
    """What was said of one path lately, and what was not."""

    silent_until: float = 0.0
    unsaid: int = 0


class RequestLog:
    """Tells of the first on each path, and of the others how many there were."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def refused(self, scope: Scope, refused: RequestRefused) -> None:
        """A request was refused."""
        why = refused.check if isinstance(refused, SignatureRejected) else refused.message
        self._say(logging.WARNING, scope, f"{status_of(refused)}: {printable(why)}")

    def unanswered(self, scope: Scope, status: int) -> None:
        """What a sender asked before it sends was answered with no."""
        what = "the sender's question was answered with no; see the source's verify_token"
        self._say(logging.WARNING, scope, f"{status}: {what}")

    def failed(self, scope: Scope, error: Exception) -> Answer:
        """A request could not be answered, and nobody foresaw why. Answers with what to say."""
        self._say(logging.ERROR, scope, f"could not be answered: {locate(error)}")
        return INTERNAL

    def _say(self, level: int, scope: Scope, what: str) -> None:
        now, path = self._clock.monotonic(), scope["path"]
        is_known = path in self._told or len(self._told) < PATHS_MOST
        told = self._told.setdefault(path if is_known else "", _Told())
        if now < told.silent_until:
            told.unsaid += 1
            return
        more = f" ({told.unsaid} more since the last such line)" if told.unsaid else ""
        _log.log(level, "%s: %s%s", printable(path), what, more)
        told.silent_until, told.unsaid = now + SILENT_SECONDS, 0
