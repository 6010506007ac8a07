"""Receiving over HTTP, as a raw ASGI application: the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from onceward.errors import RequestRefused, StoreError
from onceward.http.auth import Access
from onceward.http.bodies import BodyReader, Disconnected, bounded_headers, require_json
from onceward.http.errors import HttpError
from onceward.http.proxies import Proxies
from onceward.http.request_log import RequestLog
from onceward.http.responses import Answer, Receive, Scope, Send, answer, error_response
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
READY_SECONDS: Final = 2.0
ACCEPTED: Final = 202
REFUSED: Final = 400

Give = Callable[[Answer], None]


class _Endpoint(msgspec.Struct, frozen=True, gc=False):
    """Where a request is received: by a source, or by `POST /events/ingest` where there is none."""

    source: Source | None
    url: str = ""

    @property
    def name(self) -> str:
        return INGEST_SOURCE if self.source is None else self.source.name

    @property
    def accepted(self) -> int | Reply:
        return ACCEPTED if self.source is None else self.source.preset.accepted


class _Receipt(msgspec.Struct, gc=False):
    """What a sender is told of an event that is durable now."""

    duplicate: bool
    conflict: bool
    event_id: str
    id: str


class _Accepted(msgspec.Struct, gc=False):
    """The same, of a request with one event."""

    accepted: bool
    duplicate: bool
    conflict: bool
    event_id: str
    id: str
    source: str


class IngestApp:
    """``POST /webhooks/{source}``, ``POST /events/ingest``, ``/healthz`` and ``/readyz``."""

    def __init__(
        self,
        *,
        receiver: Receiver,
        access: Access,
        ready: Callable[[], Awaitable[None]],
        settings: Settings,
        clock: Clock,
        failpoints: Failpoints,
    ) -> None:
        self._receiver = receiver
        self._access = access
        self._ready = ready
        self._settings = settings
        self._failpoints = failpoints
        self._bodies = BodyReader(settings)
        self._complaints = RequestLog(clock)
        self._proxies = Proxies(settings.trusted_proxies)
        self._slow = frozenset(WEBHOOKS + name for name in receiver.provisioned_sources)
        """Where a secret may be handed over, which takes a transaction of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing but an answer comes out, whatever comes in."""
        try:
            found = await self._answer(scope, receive)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - an answer comes out, whatever comes in
            found = self._complaint(scope, error)
        await found.send(send)
        self._note_answer()

    def takes(self, path: str) -> bool:
        """Whether what is posted there can be given to `take` when its body is whole."""
        return _is_received(path) and path not in self._slow

    def take(self, scope: Scope, body: bytes, give: Give) -> None:
        """Receive a request that is whole, and give the answer when there is one.

        It does what a call does, without a task of its own and without asking for the body.
        """
        try:
            headers = bounded_headers(scope, self._settings)
            door = self._endpoint(scope, headers)
            self._bodies.check(headers, body)
            found = self._received(door, headers, body)
        except Exception as error:  # noqa: BLE001 - an answer comes out, whatever comes in
            give(self._complaint(scope, error))
            return
        if isinstance(found, Reply):
            give(self._replied(scope, found))
            return

        def answered(pending: Pending) -> None:
            try:
                made = _accepted(door, pending)
            except Exception as error:  # noqa: BLE001 - an answer comes out, whatever comes in
                made = self._complaint(scope, error)
            give(made)
            self._note_answer()

        found.add_done_callback(answered)

    def _note_answer(self) -> None:
        """Say that it is answered once it is: what is given in one turn is sent in the next."""
        if self._failpoints.armed:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: self._failpoints.reach("receive.answered"))

    def _received(self, door: _Endpoint, headers: Headers, body: bytes) -> Pending | Reply:
        self._failpoints.reach("receive.read")
        request = Request(headers, body, url=door.url)
        if door.source is None:
            return self._receiver.ingest(request)
        return self._receiver.receive(door.source, request)

    def _replied(self, scope: Scope, reply: Reply) -> Answer:
        if reply.status >= REFUSED:
            self._complaints.unanswered(scope, reply.status)
        return _reply(reply)

    def _complaint(self, scope: Scope, error: Exception) -> Answer:
        if isinstance(error, RequestRefused):
            self._complaints.refused(scope, error)
            return error_response(error)
        return self._complaints.failed(scope, error)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path = route_path(scope)
        headers = bounded_headers(scope, self._settings)
        if path.startswith(WEBHOOKS) and scope["method"] != "POST":
            return self._greet(scope, headers)
        if _is_received(path):
            _allow(scope, "POST")
            return await self._receive(scope, headers, receive)
        if path == HEALTHZ:
            _allow(scope, "GET", "HEAD")
            return answer(200, {"healthy": True})
        if path == READYZ:
            _allow(scope, "GET", "HEAD")
            return await self._readiness()
        raise HttpError(404, "not_found", "There is nothing here.")

    async def _receive(self, scope: Scope, headers: Headers, receive: Receive) -> Answer:
        door = self._endpoint(scope, headers)
        body = await self._bodies.read(headers, receive)
        found = self._received(door, headers, body)
        if isinstance(found, Reply):
            if found.provisioned_secret is not None:
                await self._receiver.store_secret(door.name, found.provisioned_secret)
            return self._replied(scope, found)
        await found
        return _accepted(door, found)

    def _greet(self, scope: Scope, headers: Headers) -> Answer:
        """What a sender asks before it sends: whether there is somebody here."""
        source = self._receiver.source(route_path(scope)[len(WEBHOOKS) :])
        asked = ("POST", *(source.preset.challenge.methods if source.preset.challenge else ()))
        _allow(scope, *dict.fromkeys(asked))
        url = self._public_url(source, scope, headers)
        found = source.answer_challenge(Request(headers, b"", method=scope["method"], url=url))
        if found is None:
            raise HttpError(400, "no_question", "The sender's question was not understood.")
        return self._replied(scope, found)

    def _endpoint(self, scope: Scope, headers: Headers) -> _Endpoint:
        """Who takes what is sent here, if the sender may send. Raises RequestRefused."""
        path = route_path(scope)
        if path == INGEST:
            self._access.authenticate(headers)
            require_json(headers)
            return _Endpoint(None)
        source = self._receiver.source(path[len(WEBHOOKS) :])
        if source.unsigned:
            self._access.check_open(headers)
        url = self._public_url(source, scope, headers) if source.needs_url else ""
        return _Endpoint(source, url)

    def _public_url(self, source: Source, scope: Scope, headers: Headers) -> str:
        """The URL as the sender has it: the one that is configured, else as the request came."""
        query = scope.get("query_string", b"").decode("latin-1")
        if source.url is not None:
            return source.public_url(query)
        scheme, host = self._proxies.origin(scope, headers)
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        return f"{scheme}://{host}{path}{'?' if query else ''}{query}"

    async def _readiness(self) -> Answer:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._ready()
        except (StoreError, TimeoutError):
            return answer(503, {"ready": False, "message": "The ledger cannot be read."})
        return answer(200, {"ready": True})


def route_path(scope: Scope) -> str:
    """The path below the point where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if not root:
        return path
    return path[len(root) :] if path.startswith(f"{root}/") else path


def _is_received(path: str) -> bool:
    return path.startswith(WEBHOOKS) or path == INGEST


def _allow(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        message = f"Only {' and '.join(methods)} can be used here."
        allow = (("allow", ", ".join(methods)),)
        raise HttpError(405, "wrong_method", message, headers=allow)


def _reply(reply: Reply) -> Answer:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    return Answer(reply.status, reply.body, headers, reply.content_type.encode())


def _accepted(door: _Endpoint, pending: Pending) -> Answer:
    """The answer to what is durable now: a receipt, unless the sender insists on another."""
    accepted, receipts = door.accepted, pending.result()
    if isinstance(accepted, Reply):
        return _reply(accepted)
    if len(receipts) == 1:
        told = _told(pending.arrivals[0], receipts[0])
        return answer(accepted, _Accepted(True, *told, door.name))  # noqa: FBT003 - as the fields
    pairs = zip(pending.arrivals, receipts, strict=True)
    events = [_Receipt(*_told(arrival, receipt)) for arrival, receipt in pairs]
    return answer(accepted, {"accepted": True, "events": events, "source": door.name})


def _told(arrival: Arrival, receipt: Receipt) -> tuple[bool, bool, str, str]:
    is_new = receipt.outcome is Outcome.RECORDED
    is_conflict = receipt.outcome is Outcome.CONFLICT
    return not is_new, is_conflict, arrival.event_id, str(receipt.event)
