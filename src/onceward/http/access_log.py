"""The access log: one line for each request, around an application that knows nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from onceward.http.paths import root_path
from onceward.http.receive_app import DirectReception, ReceiveApp
from onceward.http.request_log import source_in
from onceward.http.responses import ASGIApp, Message, Receive, Respond, Response, Scope, Send
from onceward.http.root_app import RootApp
from onceward.model.events import Outcome
from onceward.runtime.clock import Clock
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.runtime.redact import printable
from onceward.sources.request import Headers

_log = logging.getLogger("onceward.access")

DISCONNECTED: Final = "disconnected"
"""The outcome of a request whose sender closed the connection before the response."""


class _Receipt(msgspec.Struct):
    """The members of a response that tell its outcome: of a receipt, or of an error."""

    accepted: bool = False
    duplicate: bool = False
    conflict: bool = False
    events: Sequence[_Receipt] = ()
    status: str = ""
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
    """Logs each request of an application that also receives without a task."""

    def __init__(self, app: ReceiveApp | RootApp, clock: Clock) -> None:
        super().__init__(app, clock)
        self._direct = app

    def start_directly(
        self, scope: Scope, headers: Headers, respond: Respond
    ) -> _LoggedReception | None:
        """Start to receive a request, and log it when it has its response."""
        started = self._clock.monotonic()

        def write(status: int | None, body: bytes) -> None:
            self._write(scope, status, len(body), body, started)

        log = _OneLine(write)

        def observe(response: Response) -> None:
            respond(response)
            log(response.status, response.body)

        reception = self._direct.start_directly(scope, headers, observe)
        return None if reception is None else _LoggedReception(reception, log)


class _OneLine:
    """Writes the line of a request once: the sender may disconnect before its response."""

    def __init__(self, write: Callable[[int | None, bytes], None]) -> None:
        self._write = write
        self._is_written = False

    def __call__(self, status: int | None, body: bytes) -> None:
        if not self._is_written:
            self._is_written = True
            self._write(status, body)


class _LoggedReception:
    """A reception whose sender may disconnect without a response."""

    is_full: Final = False

    def __init__(self, reception: DirectReception, log: _OneLine) -> None:
        self.add = reception.add
        self.complete = reception.complete
        self._disconnect = reception.disconnect
        self._log = log

    def disconnect(self) -> None:
        """Log that the sender gets no response."""
        self._disconnect()
        self._log(None, b"")


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
    events = receipt.events or [receipt]
    if not receipt.accepted and not any(event.status for event in events):
        return printable(receipt.error) or None
    return ",".join(dict.fromkeys(map(_event_outcome, events)))


def _event_outcome(receipt: _Receipt) -> str:
    if receipt.status:
        return printable(receipt.status)
    if receipt.conflict:
        return Outcome.CONFLICT
    return Outcome.DUPLICATE if receipt.duplicate else Outcome.RECORDED
