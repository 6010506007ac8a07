"""Receiving over HTTP, as a raw ASGI application: the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from onceward.clock import Clock
from onceward.errors import RequestRefused, StoreError
from onceward.failpoints import Failpoints
from onceward.http.access import Access
from onceward.http.answers import Answer, Receive, Scope, Send, answer, refusal
from onceward.http.body import BodyReader, Disconnected, bounded_headers, require_json
from onceward.http.complaints import Complaints
from onceward.model import INGEST_SOURCE, Identity, Outcome, Receipt
from onceward.receive import Receiver
from onceward.settings import Settings
from onceward.sources import Source
from onceward.verify import Headers

WEBHOOKS: Final = "/webhooks/"
INGEST: Final = "/events/ingest"
HEALTHZ: Final = "/healthz"
READYZ: Final = "/readyz"
READY_SECONDS: Final = 2.0

Give = Callable[[Answer], None]


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
        return scope["method"] == "POST" and route_path(scope).startswith(WEBHOOKS)

    def take(self, scope: Scope, body: bytes, give: Give) -> None:
        """Receive a webhook that is there, and give the answer when there is one.

        It does what a call does, without a task of its own and without asking for the body: half
        of what a request would cost beside the ledger.
        """
        try:
            headers = bounded_headers(scope, self._settings)
            source = self._source(route_path(scope), headers)
            self._bodies.check(headers, body)
            self._failpoints.reach("receive.read")
            identity, pending = self._receiver.receive(source, headers, body)
        except Exception as error:  # noqa: BLE001 - an answer comes out, whatever comes in
            give(self._complaint(scope, error))
            return

        def received(pending: asyncio.Future[Receipt]) -> None:
            try:
                found = _accepted(source.name, identity, pending.result())
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
        if path.startswith(WEBHOOKS):
            _allow(scope, "POST")
            return await self._webhook(path, headers, receive)
        if path == INGEST:
            _allow(scope, "POST")
            return await self._ingest(headers, receive)
        if path == HEALTHZ:
            _allow(scope, "GET", "HEAD")
            return answer(200, {"healthy": True})
        if path == READYZ:
            _allow(scope, "GET", "HEAD")
            return await self._readiness()
        raise RequestRefused(404, "not_found", "There is nothing here.")

    async def _webhook(self, path: str, headers: Headers, receive: Receive) -> Answer:
        source = self._source(path, headers)
        body = await self._bodies.read(headers, receive)
        self._failpoints.reach("receive.read")
        identity, pending = self._receiver.receive(source, headers, body)
        return _accepted(source.name, identity, await pending)

    def _source(self, path: str, headers: Headers) -> Source:
        source = self._receiver.source(path[len(WEBHOOKS) :])
        if source.unsigned:
            self._access.check_open(headers)
        return source

    async def _ingest(self, headers: Headers, receive: Receive) -> Answer:
        self._access.authenticate(headers)
        require_json(headers)
        body = await self._bodies.read(headers, receive)
        self._failpoints.reach("receive.read")
        identity, pending = self._receiver.ingest(headers, body)
        return _accepted(INGEST_SOURCE, identity, await pending)

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
    return path[len(root) :] if path.startswith(f"{root}/") else path


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
