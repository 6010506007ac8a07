"""What the operator is told of requests that went wrong, without letting a sender fill the log."""

from __future__ import annotations

import logging
from typing import Final

from onceward.clock import Clock
from onceward.errors import RequestRefused, SignatureRejected
from onceward.http.answers import Answer, Scope, answer
from onceward.redact import printable
from onceward.settle import locate

_log = logging.getLogger("onceward.http")

SILENT_SECONDS: Final = 1.0
INTERNAL: Final[Answer] = answer(500, {"error": "internal", "message": "An error; see the log."})


class Complaints:
    """Tells of the first, and of the others how many there were."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_until = 0.0
        self._unsaid = 0

    def refused(self, scope: Scope, refused: RequestRefused) -> None:
        """A request was refused."""
        why = refused.check if isinstance(refused, SignatureRejected) else refused.message
        self._say(logging.WARNING, scope, f"{refused.status}: {printable(why)}")

    def failed(self, scope: Scope, error: Exception) -> Answer:
        """A request could not be answered, and nobody foresaw why. Answers with what to say."""
        self._say(logging.ERROR, scope, f"could not be answered: {locate(error)}")
        return INTERNAL

    def _say(self, level: int, scope: Scope, what: str) -> None:
        now = self._clock.monotonic()
        if now < self._silent_until:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        _log.log(level, "%s: %s%s", printable(scope["path"]), what, more)
        self._silent_until, self._unsaid = now + SILENT_SECONDS, 0
