"""Log lines about failed requests, limited per path so that no sender can fill the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from onceward.errors import RejectionCause, RequestRefused, SignatureRejected, UnknownSource
from onceward.http.errors import status_of
from onceward.http.responses import Response, Scope, json_response
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import locate
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable
from onceward.runtime.suggest import did_you_mean

_log = logging.getLogger("onceward.http")

LINE_INTERVAL_SECONDS: Final = 1.0
MAX_PATHS: Final = 100
"""Paths that are limited separately; further paths share one limit."""
MAX_NAME_CHARACTERS: Final = 100
"""How much of an unknown name is compared with the names of the sources."""
MAX_LISTED_SOURCES: Final = 10
INTERNAL_ERROR: Final[Response] = json_response(
    500, {"error": "internal", "message": "Internal error. The log has the details."}
)


_RECEIVING: Final = re.compile(r"/webhooks/([^/]+)$|/events/(ingest)$")


def source_in(path: str) -> str | None:
    """Return the name in the path of a source, for a log line. There may be no such source."""
    match = _RECEIVING.search(path)
    return printable(match[1] or match[2]) if match else None


@dataclass(slots=True)
class LineLimit:
    """Lets one log line through each second, and counts the suppressed ones."""

    quiet_until: float = 0.0
    suppressed: int = 0

    def take(self, now: float) -> int | None:
        """Return how many lines were suppressed since the last one, or None if none is due."""
        if now < self.quiet_until:
            self.suppressed += 1
            return None
        suppressed, self.suppressed = self.suppressed, 0
        self.quiet_until = now + LINE_INTERVAL_SECONDS
        return suppressed


def suppressed_text(suppressed: int) -> str:
    """Return the end of a line that stands for others too."""
    return f" ({suppressed} more since the last line)" if suppressed else ""


class RequestLog:
    """Logs the first failure of each second on a path, and counts the rest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paths: dict[str, LineLimit] = {}

    def refused(self, scope: Scope, error: RequestRefused) -> None:
        """Log that a request was refused."""
        self._write(logging.WARNING, scope, lambda: _reason(scope, error), status_of(error))

    def challenge_rejected(self, scope: Scope, status: int) -> None:
        """Log that a provider's challenge was rejected."""
        text = "challenge rejected; check the source's verify_token"
        self._write(logging.WARNING, scope, lambda: text, status)

    def failed(self, scope: Scope, error: Exception) -> Response:
        """Log an unexpected error and return the response to it."""
        status = INTERNAL_ERROR.status
        self._write(logging.ERROR, scope, lambda: f"request failed: {locate(error)}", status)
        return INTERNAL_ERROR

    def _write(self, level: int, scope: Scope, explain: Callable[[], str], status: int) -> None:
        """Write a line if one is due. Only then is the reason put into words."""
        path = scope["path"]
        is_tracked = path in self._paths or len(self._paths) < MAX_PATHS
        limit = self._paths.setdefault(path if is_tracked else "", LineLimit())
        suppressed = limit.take(self._clock.monotonic())
        if suppressed is None:
            return
        shown, reason = printable(path), printable(explain())
        fields = LogFields(path=shown, status=status, error=reason)
        if source := source_in(path):
            fields["source"] = source
        if suppressed:
            fields["suppressed"] = suppressed
        more = suppressed_text(suppressed)
        _log.log(level, "%s: %d: %s%s", shown, status, reason, more, extra=fields)


def _reason(scope: Scope, error: RequestRefused) -> str:
    """Return why a request was refused and what to do, for operators."""
    if isinstance(error, SignatureRejected):
        return _signature_reason(source_in(scope["path"]) or "SOURCE", error)
    if isinstance(error, UnknownSource):
        return _source_reason(error)
    return error.message


def _signature_reason(source: str, error: SignatureRejected) -> str:
    is_mismatch = error.cause is RejectionCause.MISMATCH
    fix = "compare the secret with the provider's; " if is_mismatch else ""
    command = f"`onceward verify {source} --app app.py`"
    return f"{error.check}; {fix}{command} explains a captured request"


def _source_reason(error: UnknownSource) -> str:
    names = list(error.known)
    name = printable(error.name)[:MAX_NAME_CHARACTERS]
    hint = did_you_mean(name, names)
    if not hint and names:
        rest = len(names) - MAX_LISTED_SOURCES
        more = f" and {rest} more" if rest > 0 else ""
        hint = f"; the sources are {', '.join(names[:MAX_LISTED_SOURCES])}{more}"
    return f"no source has this name{hint or '; the inbox has no sources'}"
