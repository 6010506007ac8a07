"""Receiving over HTTP. A raw ASGI application, because this is the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from onceward.errors import RequestRefused, StoreError
from onceward.http.auth import Authenticator
from onceward.http.bodies import BodyReader, Disconnected, bounded_headers, require_json
from onceward.http.errors import HttpError
from onceward.http.paths import no_such_path, root_path, route_path
from onceward.http.proxies import Proxies
from onceward.http.request_log import RequestLog
from onceward.http.responses import (
    Receive,
    Respond,
    Response,
    Scope,
    Send,
    error_response,
    json_response,
)
from onceward.model.events import INGEST_SOURCE, Arrival, Outcome, Receipt
from onceward.receive.pending import Pending
from onceward.receive.receiver import Receiver
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.sources.challenge import Reply
from onceward.sources.request import Headers, Request
from onceward.sources.source import Source

WEBHOOKS: Final = "/webhooks/"
INGEST: Final = "/events/ingest"
HEALTHZ: Final = "/healthz"
READYZ: Final = "/readyz"
READY_TIMEOUT_SECONDS: Final = 2.0
ACCEPTED: Final = 202
CLIENT_ERROR: Final = 400


StoreSecret = Callable[[str, bytes], Awaitable[None]]
"""Stores a secret that a provider provisioned for a source, durably."""


class _InboundRequest(msgspec.Struct, frozen=True, gc=False):
    """A request to receive. It has a source unless it was posted to ``/events/ingest``."""

    scope: Scope
    headers: Headers
    source: Source | None = None
    url: str = ""

    @property
    def source_name(self) -> str:
        return INGEST_SOURCE if self.source is None else self.source.name


class _Receipt(msgspec.Struct, gc=False):
    """The receipt for one event of several in a request."""

    duplicate: bool
    conflict: bool
    event_id: str
    id: str


class _Accepted(msgspec.Struct, gc=False):
    """The receipt for a request with one event."""

    accepted: bool
    duplicate: bool
    conflict: bool
    event_id: str
    id: str
    source: str


class ReceiveApp:
    """``POST /webhooks/{source}``, ``POST /events/ingest``, ``/healthz`` and ``/readyz``."""

    def __init__(
        self,
        *,
        receiver: Receiver,
        store_secret: StoreSecret,
        authenticator: Authenticator,
        ready: Callable[[], Awaitable[None]],
        warnings: Callable[[], Sequence[str]],
        settings: Settings,
        clock: Clock,
        failpoints: Failpoints,
    ) -> None:
        self._receiver = receiver
        self._store_secret = store_secret
        self._authenticator = authenticator
        self._ready = ready
        self._warnings = warnings
        self._settings = settings
        self._failpoints = failpoints
        self._bodies = BodyReader(settings)
        self._request_log = RequestLog(clock)
        self._proxies = Proxies(settings.trusted_proxies)
        self._provisioning_paths = frozenset(
            WEBHOOKS + name for name in receiver.provisioned_sources
        )
        """Paths where a provider may provision a secret, which needs an await."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Never raises: every failure becomes a response."""
        try:
            response = await self._route(scope, receive)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - every failure becomes a response
            response = self._error_response(scope, error)
        await response.send(send)
        self._reach_answered()

    async def _route(self, scope: Scope, receive: Receive) -> Response:
        path = route_path(scope)
        headers = bounded_headers(scope, self._settings)
        if path.startswith(WEBHOOKS) and scope["method"] != "POST":
            return self._challenge(scope, headers)
        if _is_receiving(path):
            _allow(scope, "POST")
            return await self._receive(scope, headers, receive)
        if path == HEALTHZ:
            _allow(scope, "GET", "HEAD")
            return json_response(200, {"healthy": True})
        if path == READYZ:
            _allow(scope, "GET", "HEAD")
            return await self._readiness()
        form = f"Webhooks are received at POST {root_path(scope)}{WEBHOOKS}<source>."
        raise no_such_path(scope, form)

    # Receiving. Every request takes the same steps: `_open`, the body, `_record`, `_response`. The
    # two entries differ in where the body comes from and in how they wait for the commit.

    async def _receive(self, scope: Scope, headers: Headers, receive: Receive) -> Response:
        """Receive a request whose body may still be arriving. Raises RequestRefused."""
        inbound = self._open(scope, headers)
        body = await self._bodies.read(headers, receive)
        result = self._record(inbound, body)
        if isinstance(result, Pending):
            await result
        elif result.provisioned_secret is not None:
            await self._store_secret(inbound.source_name, result.provisioned_secret)
        return self._response(inbound, result)

    def can_handle_directly(self, path: str) -> bool:
        """Return whether a POST to `path` may go to `handle_directly`."""
        return _is_receiving(path) and path not in self._provisioning_paths

    def handle_directly(self, scope: Scope, body: bytes, respond: Respond) -> None:
        """Receive a complete request without a task; call `respond` once, now or later.

        Never raises: every failure becomes a response.
        """
        try:
            headers = bounded_headers(scope, self._settings)
            inbound = self._open(scope, headers)
            self._bodies.check(headers, body)
            result = self._record(inbound, body)
        except Exception as error:  # noqa: BLE001 - every failure becomes a response
            respond(self._error_response(scope, error))
            return
        if isinstance(result, Reply):
            respond(self._response(inbound, result))
            return

        def finish(pending: Pending) -> None:
            respond(self._response(inbound, pending))
            self._reach_answered()

        result.add_done_callback(finish)

    def _open(self, scope: Scope, headers: Headers) -> _InboundRequest:
        """Find the endpoint and check that the sender may post there. Raises RequestRefused."""
        path = route_path(scope)
        if path == INGEST:
            self._authenticator.authenticate(headers)
            require_json(headers)
            return _InboundRequest(scope, headers)
        source = self._receiver.source(path[len(WEBHOOKS) :])
        if source.unsigned:
            self._authenticator.check_host_and_origin(headers)
        url = self._public_url(source, scope, headers) if source.needs_url else ""
        return _InboundRequest(scope, headers, source, url)

    def _record(self, inbound: _InboundRequest, body: bytes) -> Pending | Reply:
        """Verify the request and submit its events. Raises RequestRefused."""
        self._failpoints.reach("receive.read")
        request = Request(inbound.headers, body, url=inbound.url)
        if inbound.source is None:
            return self._receiver.ingest(request)
        return self._receiver.receive(inbound.source, request)

    def _response(self, inbound: _InboundRequest, result: Pending | Reply) -> Response:
        """Return the response to a challenge or to finished events. Never raises."""
        try:
            if isinstance(result, Reply):
                return self._challenge_response(inbound.scope, result)
            return _accepted(inbound, result)
        except Exception as error:  # noqa: BLE001 - every failure becomes a response
            return self._error_response(inbound.scope, error)

    def _error_response(self, scope: Scope, error: Exception) -> Response:
        if isinstance(error, RequestRefused):
            self._request_log.refused(scope, error)
            return error_response(error)
        return self._request_log.failed(scope, error)

    def _reach_answered(self) -> None:
        """Reach the failpoint after the flush: responses are written one loop iteration later."""
        if self._failpoints.armed:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: self._failpoints.reach("receive.answered"))

    # Challenges, URLs, readiness.

    def _challenge(self, scope: Scope, headers: Headers) -> Response:
        """Respond to a challenge that a provider sends before its first webhook."""
        source = self._receiver.source(route_path(scope)[len(WEBHOOKS) :])
        methods = ("POST", *(source.preset.challenge.methods if source.preset.challenge else ()))
        _allow(scope, *dict.fromkeys(methods))
        url = self._public_url(source, scope, headers)
        reply = source.answer_challenge(Request(headers, b"", method=scope["method"], url=url))
        if reply is None:
            raise HttpError(
                400,
                "no_question",
                "This is not a challenge that the source supports. Check the URL.",
            )
        return self._challenge_response(scope, reply)

    def _challenge_response(self, scope: Scope, reply: Reply) -> Response:
        if reply.status >= CLIENT_ERROR:
            self._request_log.challenge_rejected(scope, reply.status)
        return _reply(reply)

    def _public_url(self, source: Source, scope: Scope, headers: Headers) -> str:
        """Return the URL that the sender used: the configured one, else the request's own."""
        query = scope.get("query_string", b"").decode("latin-1")
        if source.url is not None:
            return source.public_url(query)
        scheme, host = self._proxies.origin(scope, headers)
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        return f"{scheme}://{host}{path}{'?' if query else ''}{query}"

    async def _readiness(self) -> Response:
        try:
            async with asyncio.timeout(READY_TIMEOUT_SECONDS):
                await self._ready()
        except (StoreError, TimeoutError):
            return json_response(
                503, {"ready": False, "message": "The ledger cannot be read. Check the database."}
            )
        return json_response(200, {"ready": True, "warnings": self._warnings()})


def _is_receiving(path: str) -> bool:
    return path.startswith(WEBHOOKS) or path == INGEST


def _allow(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        message = f"This path supports only {' and '.join(methods)}."
        allow = (("allow", ", ".join(methods)),)
        raise HttpError(405, "wrong_method", message, headers=allow)


def _reply(reply: Reply) -> Response:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    return Response(reply.status, reply.body, headers, reply.content_type.encode())


def _accepted(inbound: _InboundRequest, pending: Pending) -> Response:
    """Return the response to durable events: a receipt, or the reply the provider expects."""
    source = inbound.source
    success = ACCEPTED if source is None else source.preset.success_response
    receipts = pending.result()
    if isinstance(success, Reply):
        return _reply(success)
    if len(receipts) == 1:
        fields = _receipt_fields(pending.arrivals[0], receipts[0])
        return json_response(success, _Accepted(True, *fields, inbound.source_name))  # noqa: FBT003 - `accepted`
    pairs = zip(pending.arrivals, receipts, strict=True)
    events = [_Receipt(*_receipt_fields(arrival, receipt)) for arrival, receipt in pairs]
    return json_response(
        success, {"accepted": True, "events": events, "source": inbound.source_name}
    )


def _receipt_fields(arrival: Arrival, receipt: Receipt) -> tuple[bool, bool, str, str]:
    is_new = receipt.outcome is Outcome.RECORDED
    is_conflict = receipt.outcome is Outcome.CONFLICT
    return not is_new, is_conflict, arrival.event_id, str(receipt.event)
