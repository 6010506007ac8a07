"""Receiving over HTTP. A raw ASGI application, because this is the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec

from onceward.errors import NewerSchema, RequestRefused, StoreError
from onceward.http.auth import Authenticator
from onceward.http.bodies import BodyReader, Disconnected, bounded_headers, require_json
from onceward.http.body_memory import Body
from onceward.http.errors import NEWER_SCHEMA, HttpError
from onceward.http.paths import mount_hint, no_such_path, require_plain_path, root_path, route_path
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
from onceward.model.inline import InlineStatus
from onceward.receive.inline_request import InlineRequest, ProcessInline
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
OK: Final = 200
ACCEPTED: Final = 202
CLIENT_ERROR: Final = 400


StoreSecret = Callable[[str, bytes], Awaitable[None]]
"""Stores a secret that a provider provisioned for a source, durably."""


class InboundRequest(msgspec.Struct, frozen=True, gc=False):
    """A request to receive. It has a source unless it was posted to ``/events/ingest``."""

    scope: Scope
    headers: Headers
    body: Body
    source: Source | None = None
    url: str = ""

    @property
    def source_name(self) -> str:
        """The source of its events."""
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


class _Processed(msgspec.Struct, gc=False):
    """The state of one event of an inline source."""

    status: InlineStatus
    event_id: str


class ReceiveApp:
    """``POST /webhooks/{source}``, ``POST /events/ingest``, ``/healthz`` and ``/readyz``."""

    def __init__(
        self,
        *,
        receiver: Receiver,
        store_secret: StoreSecret,
        process_inline: ProcessInline,
        authenticator: Authenticator,
        ready: Callable[[], Awaitable[None]],
        warnings: Callable[[], Sequence[str]],
        settings: Settings,
        clock: Clock,
        failpoints: Failpoints,
    ) -> None:
        self._receiver = receiver
        self._store_secret = store_secret
        self._process_inline = process_inline
        self._authenticator = authenticator
        self._ready = ready
        self._warnings = warnings
        self._settings = settings
        self._failpoints = failpoints
        self._bodies = BodyReader(settings)
        proxies = Proxies(settings.trusted_proxies)
        self._request_log = RequestLog(
            clock,
            proxies,
            endpoints=_endpoints(receiver.source_names),
        )
        self._awaiting_paths = frozenset(
            WEBHOOKS + name for name in (*receiver.provisioned_sources, *receiver.inline_sources)
        )
        """Paths that need an await: to store a provisioned secret, or to run handlers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Never raises: every failure becomes a response."""
        try:
            response = await self._route(scope, receive)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - every failure becomes a response
            response = self.error_response(scope, error)
        await response.send(send)
        self.reach_answered()

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
        error = no_such_path(scope, form)
        error.hint = mount_hint(scope)
        raise error

    # Receiving. Every request takes the same steps: `open`, the body, `record`, `response`. The two
    # ways differ in where the body comes from and in how they wait for the commit.

    async def _receive(self, scope: Scope, headers: Headers, receive: Receive) -> Response:
        """Receive a request from an ASGI server. Raises RequestRefused."""
        inbound = self.open(scope, headers)
        await self._bodies.read(inbound.body, receive)
        result = self.record(inbound)
        if isinstance(result, Pending):
            await result
        elif isinstance(result, InlineRequest):
            await result.process(self._process_inline)
        elif result.provisioned_secret is not None:
            await self._store_secret(inbound.source_name, result.provisioned_secret)
        return self.response(inbound, result)

    def start_directly(
        self, scope: Scope, headers: Headers, respond: Respond
    ) -> DirectReception | None:
        """Start to receive a request without a task, or return None if the request needs one."""
        path = scope["path"]
        if not _is_receiving(path) or path in self._awaiting_paths:
            return None
        return DirectReception(self, scope, headers, respond)

    def open(self, scope: Scope, headers: Headers) -> InboundRequest:
        """Find the endpoint and check that the sender may post there. Raises RequestRefused."""
        path = route_path(scope)
        if path == INGEST:
            require_plain_path(scope)
            self._authenticator.authenticate(scope, headers)
            require_json(headers)
            return InboundRequest(scope, headers, self._bodies.start(scope, headers))
        source = self._receiver.source(path[len(WEBHOOKS) :])
        if source.unsigned:
            require_plain_path(scope)
            self._authenticator.check_host_and_origin(headers)
        url = _request_url(source, scope) if source.needs_url else ""
        body = self._bodies.start(scope, headers)
        self._receiver.require_proof(source, headers)
        return InboundRequest(scope, headers, body, source, url)

    def record(self, inbound: InboundRequest) -> Pending | InlineRequest | Reply:
        """Verify the complete request and submit its events. Raises RequestRefused."""
        self._failpoints.reach("receive.read")
        request = Request(inbound.headers, inbound.body.take(), url=inbound.url)
        if inbound.source is None:
            return self._receiver.ingest(request)
        return self._receiver.receive(inbound.source, request)

    def response(
        self, inbound: InboundRequest, result: Pending | InlineRequest | Reply
    ) -> Response:
        """Return the response to a challenge or to finished events. Never raises."""
        try:
            if isinstance(result, Reply):
                return self._challenge_response(inbound.scope, result)
            if isinstance(result, InlineRequest):
                return _processed(inbound, result)
            return _accepted(inbound, result.arrivals, result.result())
        except Exception as error:  # noqa: BLE001 - every failure becomes a response
            return self.error_response(inbound.scope, error)

    def error_response(self, scope: Scope, error: Exception) -> Response:
        """Return the response to a failure, and log it."""
        if isinstance(error, RequestRefused):
            self._request_log.refused(scope, error)
            return error_response(error)
        return self._request_log.failed(scope, error)

    def reach_answered(self) -> None:
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
        url = _request_url(source, scope)
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

    async def _readiness(self) -> Response:
        try:
            async with asyncio.timeout(READY_TIMEOUT_SECONDS):
                await self._ready()
        except NewerSchema:
            return json_response(503, {"ready": False, "message": NEWER_SCHEMA})
        except (StoreError, TimeoutError):
            return json_response(
                503, {"ready": False, "message": "The ledger does not respond. Check the database."}
            )
        return json_response(200, {"ready": True, "warnings": self._warnings()})


def _request_url(source: Source, scope: Scope) -> str:
    """Return the configured URL, else the path and query of a request.

    The Host header is not read: a source whose sender signs the host has a configured URL.
    """
    query = scope.get("query_string", b"").decode("latin-1").replace("#", "%23")
    if source.url is not None:
        return source.public_url(query)
    return f"{WEBHOOKS}{source.name}?{query}"


def _endpoints(sources: Iterable[str]) -> list[str]:
    return [INGEST, HEALTHZ, READYZ, *(WEBHOOKS + name for name in sources)]


class DirectReception:
    """A request received in plain calls: the parts of its body, then its end.

    Never raises: every failure becomes the response, and what follows it is ignored.
    """

    __slots__ = ("_app", "_inbound", "_respond", "_scope")

    is_full: Final = False

    def __init__(self, app: ReceiveApp, scope: Scope, headers: Headers, respond: Respond) -> None:
        self._app = app
        self._scope = scope
        self._respond = respond
        self._inbound: InboundRequest | None = None
        try:
            self._inbound = app.open(scope, headers)
        except Exception as error:  # noqa: BLE001 - every failure becomes a response
            self._fail(error)

    def add(self, chunk: bytes) -> None:
        """Add a part of the body."""
        if self._inbound is not None:
            try:
                self._inbound.body.add(chunk, self._fail)
            except Exception as error:  # noqa: BLE001 - every failure becomes a response
                self._fail(error)

    def complete(self) -> None:
        """Record the events of the complete request. The response follows their commit."""
        inbound = self._inbound
        if inbound is None:
            return
        try:
            result = self._app.record(inbound)
        except Exception as error:  # noqa: BLE001 - every failure becomes a response
            self._fail(error)
            return
        if isinstance(result, Pending):
            result.add_done_callback(self._finish)
        else:
            self._respond(self._app.response(inbound, result))

    def disconnect(self) -> None:
        """Forget the request, whose sender has disconnected. Submitted events are still written."""
        self._forget()

    def _finish(self, pending: Pending) -> None:
        if self._inbound is not None:
            self._respond(self._app.response(self._inbound, pending))
            self._app.reach_answered()

    def _fail(self, error: Exception) -> None:
        self._forget()
        self._respond(self._app.error_response(self._scope, error))

    def _forget(self) -> None:
        inbound, self._inbound = self._inbound, None
        if inbound is not None:
            inbound.body.discard()


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


def _success(inbound: InboundRequest) -> int | Reply:
    """Return the status of a success, or the reply that the provider expects."""
    source = inbound.source
    return ACCEPTED if source is None else source.preset.success_response


def _accepted(
    inbound: InboundRequest, arrivals: Sequence[Arrival], receipts: Sequence[Receipt]
) -> Response:
    """Return the response to durable events: a receipt, or the reply the provider expects."""
    success = _success(inbound)
    if isinstance(success, Reply):
        return _reply(success)
    if len(receipts) == 1:
        fields = _receipt_fields(arrivals[0], receipts[0])
        return json_response(success, _Accepted(True, *fields, inbound.source_name))  # noqa: FBT003 - `accepted`
    pairs = zip(arrivals, receipts, strict=True)
    events = [_Receipt(*_receipt_fields(arrival, receipt)) for arrival, receipt in pairs]
    return json_response(
        success, {"accepted": True, "events": events, "source": inbound.source_name}
    )


def _processed(inbound: InboundRequest, request: InlineRequest) -> Response:
    """Return the response to events whose handlers ran: their states, or the provider's reply."""
    results = request.results()
    success = _success(inbound)
    if isinstance(success, Reply):
        return _reply(success)
    is_accepted = any(result.status is InlineStatus.ACCEPTED for result in results)
    if is_accepted and len(results) == 1:
        receipts = [result.receipt for result in results]
        return _accepted(inbound, request.arrivals, receipts)
    states = [_Processed(result.status, result.event_id) for result in results]
    status = success if is_accepted else OK
    return json_response(status, states[0] if len(states) == 1 else {"events": states})


def _receipt_fields(arrival: Arrival, receipt: Receipt) -> tuple[bool, bool, str, str]:
    is_new = receipt.outcome is Outcome.RECORDED
    is_conflict = receipt.outcome is Outcome.CONFLICT
    return not is_new, is_conflict, arrival.event_id, str(receipt.event)
