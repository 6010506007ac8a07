"""What the operator is told of requests that went wrong, without letting a sender fill the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from onceward.errors import RequestRefused, SignatureRejected
from onceward.http.errors import status_of
from onceward.http.responses import Response, Scope, json_response
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import locate
from onceward.runtime.redact import printable

_log = logging.getLogger("onceward.http")

LINE_INTERVAL_SECONDS: Final = 1.0
MAX_PATHS: Final = 100
"""How many paths are told apart; who tries more has them told together."""
INTERNAL_ERROR: Final[Response] = json_response(
    500, {"error": "internal", "message": "An error; see the log."}
)


@dataclass(slots=True)
class _PathLog:
    """What was said of one path lately, and what was not."""

    quiet_until: float = 0.0
    suppressed: int = 0


class RequestLog:
    """Tells of the first on each path, and of the others how many there were."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paths: dict[str, _PathLog] = {}

    def refused(self, scope: Scope, error: RequestRefused) -> None:
        """A request was refused."""
        reason = error.check if isinstance(error, SignatureRejected) else error.message
        self._write(logging.WARNING, scope, f"{status_of(error)}: {printable(reason)}")

    def challenge_rejected(self, scope: Scope, status: int) -> None:
        """What a sender asked before it sends was answered with no."""
        what = "the sender's question was answered with no; see the source's verify_token"
        self._write(logging.WARNING, scope, f"{status}: {what}")

    def failed(self, scope: Scope, error: Exception) -> Response:
        """A request could not be answered, and nobody foresaw why. Answers with what to say."""
        self._write(logging.ERROR, scope, f"could not be answered: {locate(error)}")
        return INTERNAL_ERROR

    def _write(self, level: int, scope: Scope, text: str) -> None:
        now, path = self._clock.monotonic(), scope["path"]
        is_tracked = path in self._paths or len(self._paths) < MAX_PATHS
        entry = self._paths.setdefault(path if is_tracked else "", _PathLog())
        if now < entry.quiet_until:
            entry.suppressed += 1
            return
        more = f" ({entry.suppressed} more since the last such line)" if entry.suppressed else ""
        _log.log(level, "%s: %s%s", printable(path), text, more)
        entry.quiet_until, entry.suppressed = now + LINE_INTERVAL_SECONDS, 0
