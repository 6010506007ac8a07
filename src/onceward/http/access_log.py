"""The access log: one line for each request, around an application that knows nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from onceward.http.paths import root_path
from onceward.http.receive_app import ReceiveApp
from onceward.http.request_log import source_in
from onceward.http.responses import ASGIApp, Message, Receive, Respond, Response, Scope, Send
from onceward.http.root_app import RootApp
from onceward.model.events import Outcome
from onceward.runtime.clock import Clock
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.runtime.redact import printable

_log = logging.getLogger("onceward.access")

DISCONNECTED: Final = "disconnected"
"""The outcome of a request whose sender closed the connection before the response."""


class _Receipt(msgspec.Struct):
    """The members of a response that tell its outcome: of a receipt, or of an error."""

    accepted: bool = False
    duplicate: bool = False
    conflict: bool = False
    events: Sequence[_Receipt] = ()
    error: str = ""


_decode_receipt = msgspec.json.Decoder(_Receipt).decode


class AccessLog:
    """Logs each request of an ASGI application when its response is complete."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, and log it."""
        started = self._clock.monotonic()
        status: int | None = None
        size = 0
        body = b""

        async def observe(message: Message) -> None:
            nonlocal status, size, body
            if message["type"] == "http.response.start":
                status = message["status"]
            body = message.get("body", b"")  # a receipt has one part
            size += len(body)
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            self._write(scope, status, size, body, started)

    def _write(
        self, scope: Scope, status: int | None, size: int, body: bytes, started: float
    ) -> None:
        milliseconds = round((self._clock.monotonic() - started) * 1000, 1)
        path = _path(scope)
        method = printable(scope["method"])
        fields = LogFields(method=method, path=path, milliseconds=milliseconds, bytes=size)
        if status is not None:
            fields["status"] = status
        if client := scope.get("client"):
            fields["client"] = printable(str(client[0]))
        if source := source_in(path):
            fields["source"] = source
        if outcome := _outcome(status, body if source else b""):
            fields["outcome"] = outcome
        shown = "no response" if status is None else status
        duration = seconds_text(milliseconds)
        _log.info("%s %s %s in %s ms", method, path, shown, duration, extra=fields)


class DirectAccessLog(AccessLog):
    """Logs each request of an application that also handles complete requests without a task."""

    def __init__(self, app: ReceiveApp | RootApp, clock: Clock) -> None:
        super().__init__(app, clock)
        self._direct = app
        self.can_handle_directly = app.can_handle_directly

    def handle_directly(self, scope: Scope, body: bytes, respond: Respond) -> None:
        """Handle a complete request, and log it."""
        started = self._clock.monotonic()

        def observe(response: Response) -> None:
            respond(response)
            self._write(scope, response.status, len(response.body), response.body, started)

        self._direct.handle_directly(scope, body, observe)


def _path(scope: Scope) -> str:
    """Return the path as the sender wrote it, without its query; a mount does not shorten it."""
    raw: Any = scope.get("raw_path") or scope["path"]
    path = raw.decode("latin-1") if isinstance(raw, bytes) else raw
    if root := root_path(scope):
        written = quote(root) if isinstance(raw, bytes) else root
        path = path if path.startswith(f"{written}/") else written + path
    return printable(path.partition("?")[0])


def _outcome(status: int | None, body: bytes) -> str | None:
    """Return the outcome that the response to a webhook states, or None if it states none."""
    if status is None:
        return DISCONNECTED
    try:
        receipt = _decode_receipt(body)
    except msgspec.DecodeError:  # a response that the provider expects
        return None
    if not receipt.accepted:
        return printable(receipt.error) or None
    events = receipt.events or [receipt]
    return ",".join(dict.fromkeys(map(_event_outcome, events)))


def _event_outcome(receipt: _Receipt) -> Outcome:
    if receipt.conflict:
        return Outcome.CONFLICT
    return Outcome.DUPLICATE if receipt.duplicate else Outcome.RECORDED
