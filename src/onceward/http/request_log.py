"""Log lines about failed requests, limited per path so that no sender can fill the log."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Final

from onceward.errors import RequestRefused, SignatureRejected
from onceward.http.errors import status_of
from onceward.http.responses import Response, Scope, json_response
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import locate
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable

_log = logging.getLogger("onceward.http")

LINE_INTERVAL_SECONDS: Final = 1.0
MAX_PATHS: Final = 100
"""Paths that are limited separately; further paths share one limit."""
INTERNAL_ERROR: Final[Response] = json_response(
    500, {"error": "internal", "message": "Internal error. The log has the details."}
)


_RECEIVING: Final = re.compile(r"/webhooks/([^/]+)$|/events/(ingest)$")


def source_in(path: str) -> str | None:
    """Return the name in the path of a source, for a log line. There may be no such source."""
    match = _RECEIVING.search(path)
    return printable(match[1] or match[2]) if match else None


@dataclass(slots=True)
class _PathLog:
    """When the next line about a path is due, and how many were suppressed."""

    quiet_until: float = 0.0
    suppressed: int = 0


class RequestLog:
    """Logs the first failure of each second on a path, and counts the rest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paths: dict[str, _PathLog] = {}

    def refused(self, scope: Scope, error: RequestRefused) -> None:
        """Log that a request was refused."""
        reason = error.check if isinstance(error, SignatureRejected) else error.message
        self._write(logging.WARNING, scope, printable(reason), status_of(error))

    def challenge_rejected(self, scope: Scope, status: int) -> None:
        """Log that a provider's challenge was rejected."""
        text = "challenge rejected; check the source's verify_token"
        self._write(logging.WARNING, scope, text, status)

    def failed(self, scope: Scope, error: Exception) -> Response:
        """Log an unexpected error and return the response to it."""
        self._write(logging.ERROR, scope, f"request failed: {locate(error)}", INTERNAL_ERROR.status)
        return INTERNAL_ERROR

    def _write(self, level: int, scope: Scope, reason: str, status: int) -> None:
        now, path = self._clock.monotonic(), scope["path"]
        is_tracked = path in self._paths or len(self._paths) < MAX_PATHS
        entry = self._paths.setdefault(path if is_tracked else "", _PathLog())
        if now < entry.quiet_until:
            entry.suppressed += 1
            return
        more = f" ({entry.suppressed} more since the last line)" if entry.suppressed else ""
        shown = printable(path)
        fields = LogFields(path=shown, status=status, error=reason)
        if source := source_in(path):
            fields["source"] = source
        if entry.suppressed:
            fields["suppressed"] = entry.suppressed
        _log.log(level, "%s: %d: %s%s", shown, status, reason, more, extra=fields)
        entry.quiet_until, entry.suppressed = now + LINE_INTERVAL_SECONDS, 0
