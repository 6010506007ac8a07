"""Receiving over HTTP, as a raw ASGI application: the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from onceward.clock import Clock
from onceward.errors import RequestRefused, StoreError
from onceward.failpoints import Failpoints
from onceward.http.access import Access
from onceward.http.answers import Answer, Receive, Scope, Send, answer, refusal
from onceward.http.body import BodyReader, Disconnected, bounded_headers, require_json
from onceward.http.complaints import Complaints
from onceward.model import INGEST_SOURCE, Identity, Outcome, Receipt
from onceward.receive import Receiver
from onceward.request import Headers, Request
from onceward.settings import Settings

WEBHOOKS: Final = "/webhooks/"
INGEST: Final = "/events/ingest"
HEALTHZ: Final = "/healthz"
READYZ: Final = "/readyz"
READY_SECONDS: Final = 2.0

Give = Callable[[Answer], None]


class _Door(NamedTuple):
    source: str
    receive: Callable[[Request], tuple[Identity, asyncio.Future[Receipt]]]
    url: str = ""


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
        self._complaints = Complaints(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing but an answer comes out, whatever comes in."""
        try:
            found = await self._answer(scope, receive)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - an answer comes out, whatever comes in
            found = self._complaint(scope, error)
        await found.send(send)
        self._failpoints.reach("receive.answered")

    def takes(self, scope: Scope) -> bool:
        """Whether a request can be given to `take` when its body is whole."""
        return scope["method"] == "POST" and _is_received(route_path(scope))

    def take(self, scope: Scope, body: bytes, give: Give) -> None:
        """Receive a request that is whole, and give the answer when there is one.

        It does what a call does, without a task of its own and without asking for the body.
        """
        try:
            headers = bounded_headers(scope, self._settings)
            door = self._door(scope, headers)
            self._bodies.check(headers, body)
            self._failpoints.reach("receive.read")
            identity, pending = door.receive(Request(headers, body, url=door.url))
        except Exception as error:  # noqa: BLE001 - an answer comes out, whatever comes in
            give(self._complaint(scope, error))
            return

        def received(pending: asyncio.Future[Receipt]) -> None:
            try:
                found = _accepted(door.source, identity, pending.result())
            except Exception as error:  # noqa: BLE001 - an answer comes out, whatever comes in
                found = self._complaint(scope, error)
            give(found)
            self._failpoints.reach("receive.answered")

        pending.add_done_callback(received)

    def _complaint(self, scope: Scope, error: Exception) -> Answer:
        if isinstance(error, RequestRefused):
            self._complaints.refused(scope, error)
            return refusal(error)
        return self._complaints.failed(scope, error)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path = route_path(scope)
        headers = bounded_headers(scope, self._settings)
        if _is_received(path):
            _allow(scope, "POST")
            return await self._receive(scope, headers, receive)
        if path == HEALTHZ:
            _allow(scope, "GET", "HEAD")
            return answer(200, {"healthy": True})
        if path == READYZ:
            _allow(scope, "GET", "HEAD")
            return await self._readiness()
        raise RequestRefused(404, "not_found", "There is nothing here.")

    async def _receive(self, scope: Scope, headers: Headers, receive: Receive) -> Answer:
        door = self._door(scope, headers)
        body = await self._bodies.read(headers, receive)
        self._failpoints.reach("receive.read")
        identity, pending = door.receive(Request(headers, body, url=door.url))
        return _accepted(door.source, identity, await pending)

    def _door(self, scope: Scope, headers: Headers) -> _Door:
        """Who takes what is sent here, if the sender may send. Raises RequestRefused."""
        path = route_path(scope)
        if path == INGEST:
            self._access.authenticate(headers)
            require_json(headers)
            return _Door(INGEST_SOURCE, self._receiver.ingest)
        source = self._receiver.source(path[len(WEBHOOKS) :])
        if source.unsigned:
            self._access.check_open(headers)
        url = source.url or (_url(scope, headers) if source.signs_url else "")
        return _Door(source.name, partial(self._receiver.receive, source), url)

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


def _url(scope: Scope, headers: Headers) -> str:
    """The URL as the sender has it, unless something in between changes it."""
    host = (headers.get(b"host") or b"").decode("latin-1")
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{scope.get('scheme', 'http')}://{host}{path}{'?' if query else ''}{query}"


def _is_received(path: str) -> bool:
    return path.startswith(WEBHOOKS) or path == INGEST


def _allow(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        message = f"Only {' and '.join(methods)} can be used here."
        allow = (("allow", ", ".join(methods)),)
        raise RequestRefused(405, "wrong_method", message, headers=allow)


def _accepted(source: str, identity: Identity, receipt: Receipt) -> Answer:
    return answer(
        202,
        {
            "accepted": True,
            "duplicate": receipt.outcome is not Outcome.RECORDED,
            "conflict": receipt.outcome is Outcome.CONFLICT,
            "source": source,
            "event_id": identity.event_id,
            "id": str(receipt.event),
        },
    )
