"""Log lines about failed requests, limited so that no sender can fill the log.

Each line names the client, the reason and what to do about it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from onceward.errors import RejectionCause, RequestRefused, SignatureRejected, UnknownSource
from onceward.http.errors import AuthenticationFailed, status_of
from onceward.http.line_limits import FailedRequest, RequestLineLimits
from onceward.http.paths import route_path
from onceward.http.proxies import Proxies
from onceward.http.responses import INTERNAL_ERROR, Response, Scope
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import locate
from onceward.runtime.line_limit import LINE_INTERVAL_SECONDS, suppressed_note
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable
from onceward.sources.request import Headers

_log = logging.getLogger("onceward.http")

FLUSH_SECONDS: Final = 2 * LINE_INTERVAL_SECONDS
"""When suppressed lines are counted that no further line has counted."""
MAX_LISTED_SOURCES: Final = 10
_AUTHENTICATION: Final = "authentication"
"""The limit of lines about failed authentications: a path is always another text."""

_RECEIVING: Final = re.compile(r"/webhooks/([^/]+)$|/events/(ingest)$")


def source_in(path: str) -> str | None:
    """Return the name in the path of a source, for a log line. There may be no such source."""
    match = _RECEIVING.search(path)
    return printable(match[1] or match[2]) if match else None


def _call_later(seconds: float, callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, callback)


class RequestLog:
    """Logs the first failure of each second on a path, and the first of each client.

    The rest is counted. `endpoints` are the paths of the application, without its mount point.
    """

    def __init__(
        self,
        clock: Clock,
        proxies: Proxies,
        *,
        endpoints: Iterable[str] = (),
        call_later: Callable[[float, Callable[[], None]], None] = _call_later,
    ) -> None:
        self._clock = clock
        self._proxies = proxies
        self._limits = RequestLineLimits([*endpoints, _AUTHENTICATION])
        self._call_later = call_later
        self._flush_at = 0.0

    def refused(self, scope: Scope, error: RequestRefused) -> None:
        """Log that a request was refused. Failed authentications on all paths share a limit."""
        route = _AUTHENTICATION if isinstance(error, AuthenticationFailed) else route_path(scope)
        about = LogFields()
        if error.event_id:
            about["event_id"] = printable(error.event_id)
        if error.handler:
            about["handler"] = error.handler
        status = status_of(error)
        self._write(
            logging.WARNING, scope, lambda: _reason(scope, error), status, route, about=about
        )

    def challenge_rejected(self, scope: Scope, status: int) -> None:
        """Log that a provider's challenge was rejected."""
        text = "challenge rejected; check the source's verify_token"
        self._write(logging.WARNING, scope, lambda: text, status, route_path(scope))

    def failed(self, scope: Scope, error: Exception) -> Response:
        """Log an unexpected error and return the response to it."""
        status, route = INTERNAL_ERROR.status, route_path(scope)
        self._write(logging.ERROR, scope, lambda: f"request failed: {locate(error)}", status, route)
        return INTERNAL_ERROR

    def _write(
        self,
        level: int,
        scope: Scope,
        explain: Callable[[], str],
        status: int,
        route: str,
        *,
        about: LogFields | None = None,
    ) -> None:
        """Write a line if one is due. Only then is the reason put into words."""
        now = self._clock.monotonic()
        client = self._proxies.client(scope, _headers(scope))
        request = FailedRequest(scope["path"], route, status, client)
        suppressed = self._limits.take(request, now)
        if suppressed is None:
            self._flush_later(now)
            return
        reason = printable(explain())
        fields = _fields(request, suppressed)
        fields["error"] = reason
        fields |= about or LogFields()
        sender = fields.get("client", "")
        notes = [f"from {sender}"] if sender and sender not in reason else []
        if suppressed:
            notes.append(suppressed_note(suppressed))
        more = f" ({'; '.join(notes)})" if notes else ""
        _log.log(level, "%s: %d: %s%s", fields["path"], status, reason, more, extra=fields)

    # The end of a flood. While it lasts, each line counts those before it.

    def _flush_later(self, now: float) -> None:
        if now >= self._flush_at:
            self._flush_at = now + FLUSH_SECONDS
            self._call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        """Count the lines that were suppressed last and that no further line will count."""
        now = self._clock.monotonic()
        for last, suppressed in self._limits.take_ended(now):
            note = suppressed_note(suppressed)
            if last is None:
                _log.warning("other paths: %s", note, extra=LogFields(suppressed=suppressed))
                continue
            fields = _fields(last._replace(client=""), suppressed)
            _log.warning("%s: %d: %s", fields["path"], last.status, note, extra=fields)
        self._flush_at = 0.0
        if self._limits.has_suppressed:
            self._flush_later(now)


def _headers(scope: Scope) -> Headers:
    return Headers(scope.get("headers", ()))


def _reason(scope: Scope, error: RequestRefused) -> str:
    """Return why a request was refused and what to do, for operators."""
    if isinstance(error, SignatureRejected):
        return _signature_reason(scope, error)
    if isinstance(error, UnknownSource):
        return _source_reason(error)
    if isinstance(error, AuthenticationFailed):
        return error.reason
    return f"{error.message} {error.hint}".rstrip()


def _signature_reason(scope: Scope, error: SignatureRejected) -> str:
    steps = [error.check]
    if error.cause is RejectionCause.MISMATCH:
        body = "check that no middleware or proxy changes the body"
        steps.append(f"compare the secret with the provider's, and {body}")
    source = source_in(scope["path"]) or "SOURCE"
    steps.append(f"`onceward verify {source} --app app.py` explains a captured request")
    return "; ".join(steps)


def _fields(request: FailedRequest, suppressed: int) -> LogFields:
    fields = LogFields(path=printable(request.path), status=request.status)
    if source := source_in(request.path):
        fields["source"] = source
    if request.client:
        fields["client"] = printable(request.client)
    if suppressed:
        fields["suppressed"] = suppressed
    return fields


def _source_reason(error: UnknownSource) -> str:
    """Return a reason that takes no longer with more sources: anyone can send any name."""
    known = error.known
    if error.name.endswith("/") and error.name[:-1] in known:
        return "no source has this name; remove the slash at the end"
    if not known:
        return "no source has this name; the inbox has no sources"
    rest = len(known) - MAX_LISTED_SOURCES
    more = f" and {rest} more" if rest > 0 else ""
    listed = ", ".join(islice(known, MAX_LISTED_SOURCES))
    return f"no source has this name; the sources are {listed}{more}"
