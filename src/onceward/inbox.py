"""The Inbox: sources, handlers and a store, and the applications that serve them."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import secrets as random_secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from onceward.clock import SystemClock
from onceward.errors import (
    ConfigurationError,
    OncewardError,
    RequestRefused,
    StoreError,
    StoreUnavailable,
)
from onceward.failpoints import Failpoints
from onceward.handle import Handler, HandlerFunction, Handling, make_handler
from onceward.http.access import Access, parse_tokens, token_hash
from onceward.http.admin import ADMIN, AdminApi
from onceward.http.answers import Answer, Receive, Scope, Send, answer, refusal
from onceward.http.ingest import INGEST, IngestApp, route_path
from onceward.http.openapi import FRONT_DOOR, OPENAPI, document
from onceward.model import INGEST_SOURCE, HandlerEntry
from onceward.operate import LISTS, Operator
from onceward.ports import Store
from onceward.providers import Preset
from onceward.receive import Receiver
from onceward.record import Recorder
from onceward.record import refusal as unavailable
from onceward.redact import redact
from onceward.retry import RetryPolicy
from onceward.schemes import Scheme
from onceward.settings import Settings, resolve
from onceward.settle import settlement_of
from onceward.sources import Source, make_source
from onceward.store.postgres import PostgresStore
from onceward.store.sqlite import SqliteStore
from onceward.transaction import Transaction, UnitOfWork
from onceward.upkeep import REGISTER_EVERY_SECONDS, STORE_EVERY_SECONDS, repeat
from onceward.worker import Worker

_log = logging.getLogger("onceward.inbox")

F = TypeVar("F", bound=HandlerFunction)
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Preparation = Callable[[Transaction], Awaitable[None]]

WELCOME: Final = {
    "message": "Onceward is running. Post events, then look at what happened.",
    "post": INGEST,
    "look": [f"{ADMIN}/{kind}" for kind in LISTS],
}
FIRST_HOLDER: Final = "admin"
"""Whose token is made at the first start."""


class Inbox:
    """What a team configures: where events come from, and what is done with them.

    `database` is ``sqlite:///file`` or ``postgresql://…``; without one, what the environment says,
    else ``onceward.db`` in the current folder. Further settings go by their names.
    """

    def __init__(self, database: str | None = None, **settings: Any) -> None:
        self._code = settings if database is None else {**settings, "database_url": database}
        self._sources: dict[str, Source] = {}
        self._handlers: dict[str, Handler] = {}
        self._preparations: list[Preparation] = []
        self._retired: list[str] = []
        self._mounted: Service | None = None

    def source(
        self,
        name: str,
        *,
        preset: str | Preset | None = None,
        scheme: str | Scheme | None = None,
        secrets: Sequence[str | bytes] = (),
        unsigned: bool = False,
        url: str | None = None,
        verify_token: str | None = None,
        signature_header: str | None = None,
        signature_prefix: str | None = None,
        id: str | Sequence[str] | None = None,
        type: str | Sequence[str] | None = None,
        reference: str | None = None,
        tolerance_seconds: int | None = None,
        keep_headers: Iterable[str] = (),
    ) -> None:
        """Take webhooks from a sender at ``POST /webhooks/{name}``.

        `preset` says how the sender signs; without it, the preset of the same name, else ``hmac``.
        `scheme` names one of the preset's, or is one of your own. Several `secrets` are all
        accepted, so that one can be replaced by another. `url` is the public URL, for senders that
        sign it; `verify_token` is what Meta sends when it is told of the URL. `id`, `type` and
        `reference` say where these are: ``header:Name`` or ``json:path``.
        """
        source = make_source(
            name,
            preset=preset,
            scheme=scheme,
            secrets=secrets,
            unsigned=unsigned,
            url=url,
            verify_token=verify_token,
            signature_header=signature_header,
            signature_prefix=signature_prefix,
            id=id,
            type=type,
            reference=reference,
            tolerance_seconds=tolerance_seconds,
            keep_headers=keep_headers,
        )
        if name in self._sources:
            msg = f"source {name!r}: there is one of this name already"
            raise ConfigurationError(msg)
        self._sources[name] = source

    def on(
        self,
        *patterns: str,
        source: str | None = None,
        name: str | None = None,
        model: Any = None,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
    ) -> Callable[[F], F]:
        """Have a function handle events by type: ``invoice.paid``, ``invoice.*`` or ``*``.

        It is given what it names: `event`, `tx`, `effects`. Its name, or `name`, is stored with its
        jobs: keep it when the function is renamed. A `model` validates the payload first.
        """

        def decorate(function: F) -> F:
            handler = make_handler(
                function,
                patterns=patterns,
                source=source,
                name=name,
                model=model,
                timeout_seconds=timeout_seconds,
                max_attempts=max_attempts,
            )
            if handler.name in self._handlers:
                msg = f"Handler {handler.name}: there is one of this name already; pass name="
                raise ConfigurationError(msg)
            self._handlers[handler.name] = handler
            return function

        return decorate

    def at_start(self, function: Preparation) -> Preparation:
        """Have an async function run when the inbox opens, with a transaction `tx`.

        For tables of one's own: ``CREATE TABLE IF NOT EXISTS …``. One process runs it at a time.
        """
        self._preparations.append(function)
        return function

    def retire(self, *names: str) -> None:
        """Make no more jobs for handlers that are gone from the code. Queued ones stay queued."""
        self._retired += names

    def asgi(self) -> ASGIApp:
        """An ASGI application that receives, and nothing else."""
        return MountedApp(self._mount, lambda service: service.ingest_app())

    def admin_asgi(self) -> ASGIApp:
        """An ASGI application with the admin API at its root, for holders of a token only."""
        return MountedApp(self._mount, lambda service: service.admin_app(prefix=""))

    def _mount(self) -> Service:
        """The service that all mounted applications share: a process opens a store once."""
        if self._mounted is None or self._mounted.is_closed:
            self._mounted = self.service()
        return self._mounted

    def service(
        self, command_line: Mapping[str, Any] | None = None, *, dev: bool = False
    ) -> Service:
        """Put it all together; `command_line` wins over the code. Raises ConfigurationError."""
        environment = dict(os.environ)
        settings = resolve(command_line=command_line, code=self._code, environment=environment)
        faults = [
            f"Handler {handler.name}: there is no source {route.source!r}"
            for handler in self._handlers.values()
            for route in handler.routes
            if route.source not in (None, INGEST_SOURCE, *self._sources)
        ]
        if faults:
            raise ConfigurationError(faults)
        return Service(
            settings=settings,
            sources=self._sources,
            handlers={
                name: handler.completed_by(settings) for name, handler in self._handlers.items()
            },
            preparations=self._preparations,
            retired=self._retired,
            tokens=parse_tokens(environment.get("ONCEWARD_ADMIN_TOKENS", "")),
            failpoints=Failpoints(environment.get("ONCEWARD_FAILPOINTS", "")),
            dev=dev,
        )


class Service:
    """An inbox at work in one process."""

    def __init__(
        self,
        *,
        settings: Settings,
        sources: Mapping[str, Source],
        handlers: Mapping[str, Handler],
        preparations: Sequence[Preparation],
        retired: Sequence[str],
        tokens: Mapping[str, bytes],
        failpoints: Failpoints,
        dev: bool,
    ) -> None:
        self.settings = settings
        self.sources = sources
        self.handlers = handlers
        self.dev = dev
        self.unhandled: list[str] = []
        """Handlers for which jobs are made although this process does not have them."""
        self._preparations = preparations
        self._retired = retired
        self._tokens = dict(tokens)
        self._failpoints = failpoints
        self._clock = SystemClock()
        self.store = make_store(settings, failpoints, self._clock)
        self._recorder = Recorder(self.store, settings)
        self._upkeep: list[asyncio.Task[None]] = []
        self._opening = asyncio.Lock()
        self.is_closed = False
        """Whether it was closed, or could not be opened: it cannot be opened again."""

    async def open(self) -> None:
        """Open the store, tell it of sources and handlers, and prepare the user's tables."""
        async with self._opening:
            if self.is_closed:
                raise StoreUnavailable("the inbox was closed")
            if not self._upkeep:
                await self._open()
                self._upkeep = [
                    asyncio.create_task(repeat(self.store.upkeep, STORE_EVERY_SECONDS)),
                    asyncio.create_task(repeat(self._register, REGISTER_EVERY_SECONDS)),
                ]

    async def _open(self) -> None:
        try:
            await self.store.open(serving=True)
            await self._register()
            await self._prepare()
            self._tokens = self._tokens or await self.store.tokens()
        except BaseException:
            self.is_closed = True
            await self.store.close()
            raise

    async def _register(self) -> None:
        """Say what is handled here, and say it again and again while it is."""
        sources = [INGEST_SOURCE, *self.sources]
        routed = await self.store.register(sources, self._entries(), self._retired)
        self.unhandled = sorted(set(routed) - self.handlers.keys())

    async def close(self) -> None:
        """Write what waits, and let go of the store."""
        self.is_closed = True
        if not self._upkeep:
            return
        upkeep, self._upkeep = self._upkeep, []
        for task in upkeep:
            task.cancel()
        await asyncio.gather(*upkeep, return_exceptions=True)
        await self._recorder.close()
        await self.store.close()

    async def first_token(self) -> str | None:
        """Make an admin token when there is none, and give it away once."""
        if self.dev or self._tokens:
            return None
        token = random_secrets.token_urlsafe(32)
        if not await self.store.add_first_token(FIRST_HOLDER, token_hash(token.encode())):
            self._tokens = await self.store.tokens()  # another process was quicker
            return None
        self._tokens[FIRST_HOLDER] = token_hash(token.encode())
        return token

    def worker(self) -> Worker:
        """A worker for the handlers of this process."""
        decide = functools.partial(
            settlement_of,
            policy=RetryPolicy(self.settings.retry_base_seconds, self.settings.retry_max_seconds),
            random=random.random,
            secrets=[secret for source in self.sources.values() for secret in source.secrets],
        )
        return Worker(
            name=f"{socket.gethostname()}:{os.getpid()}",
            queue=self.store,
            handling=Handling(
                queue=self.store,
                handlers=self.handlers,
                decide=decide,
                clock=self._clock,
                failpoints=self._failpoints,
            ),
            handlers=list(self.handlers),
            settings=self.settings,
            clock=self._clock,
        )

    def app(self) -> Front:
        """Receiving and the admin API in one application, as ``onceward serve`` runs it."""
        return Front(self.ingest_app(), self.admin_app(prefix=ADMIN), dev=self.dev)

    def ingest_app(self) -> IngestApp:
        """The application that receives."""
        return IngestApp(
            receiver=Receiver(
                sources=self.sources,
                recorder=self._recorder,
                clock=self._clock,
                failpoints=self._failpoints,
            ),
            access=self._access(),
            ready=self.store.ready,
            settings=self.settings,
            clock=self._clock,
            failpoints=self._failpoints,
        )

    def admin_app(self, *, prefix: str) -> ASGIApp:
        """The admin API."""
        api = AdminApi(
            operator=Operator(self.store),
            clock=self._clock,
            access=self._access(),
            settings=self.settings,
            document=document(
                settings=self.settings,
                sources=self.sources if prefix else None,
                prefix=prefix,
                dev=self.dev,
            ),
        )
        return api.app(prefix)

    def _access(self) -> Access:
        return Access(tokens=self._tokens, allowed_hosts=self.settings.allowed_hosts, dev=self.dev)

    def _entries(self) -> list[HandlerEntry]:
        return [
            HandlerEntry(
                handler.name, handler.max_attempts or self.settings.max_attempts, handler.routes
            )
            for handler in self.handlers.values()
        ]

    async def _prepare(self) -> None:
        if not self._preparations:
            return
        async with UnitOfWork(lambda _: self.store.prepare(), self._failpoints) as unit:
            for preparation in self._preparations:
                await preparation(Transaction(unit))
            await unit.commit()


class MountedApp:
    """A part of a service as an application: opened at start, or at its first request."""

    def __init__(self, service: Callable[[], Service], build: Callable[[Service], ASGIApp]) -> None:
        self._service = service
        self._build = build
        self._app: ASGIApp | None = None
        self._opened: Service | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or follow the server's start and stop."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        try:
            app = await self._open()
        except StoreError as error:
            _log.warning("the inbox could not be opened: %s", redact(str(error)))
            trouble = unavailable("unavailable", "The ledger cannot be used now. Try again later.")
            await refusal(trouble).send(send)
            return
        await app({**scope, "path": route_path(scope), "root_path": ""}, receive, send)

    async def _open(self) -> ASGIApp:
        service = self._service()
        await service.open()
        if self._app is None or self._opened is not service:
            self._app, self._opened = self._build(service), service
        return self._app

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._open()
                except OncewardError as error:
                    fault = f"Onceward: {redact(str(error))}"
                    await send({"type": "lifespan.startup.failed", "message": fault})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._service().close()
                await send({"type": "lifespan.shutdown.complete"})
                return


class Front:
    """Receiving and the admin API behind one address."""

    def __init__(self, ingest: IngestApp, admin: ASGIApp, *, dev: bool) -> None:
        self._ingest = ingest
        self._admin = admin
        self._dev = dev
        self.takes = ingest.takes
        self.take = ingest.take

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        if self._dev and path == FRONT_DOOR:
            await _welcome(scope["method"]).send(send)
            return
        is_admin = path.startswith(f"{ADMIN}/") or path == OPENAPI
        await (self._admin if is_admin else self._ingest)(scope, receive, send)


def _welcome(method: str) -> Answer:
    """Tell a visitor where to go. Nobody else gets a 2xx here: to a post it would mean recorded."""
    if method in ("GET", "HEAD"):
        return answer(200, WELCOME)
    message = "Only GET and HEAD can be used here."
    allow = (("allow", "GET, HEAD"),)
    return refusal(RequestRefused(405, "wrong_method", message, headers=allow))


def make_store(settings: Settings, failpoints: Failpoints, clock: SystemClock) -> Store:
    """The store that the settings name. Raises ConfigurationError."""
    url = settings.database_url
    if url.startswith("sqlite:///"):
        return SqliteStore(settings, failpoints, clock)
    if url.startswith(("postgresql://", "postgres://")):
        return PostgresStore(settings, failpoints)
    scheme, separator, _ = url.partition("://")
    begins = f"begins with {scheme[:20] + separator!r}" if separator else "has no scheme"
    msg = f"database_url {begins}; it must be sqlite:///file.db or postgresql://user@host/name"
    raise ConfigurationError(msg)
