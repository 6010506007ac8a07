"""An inbox at work in one process: a store, what receives, what works, and who looks on."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets as random_secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from onceward.errors import (
    ConfigurationError,
    LedgerUnavailable,
    StoreError,
    StoreUnavailable,
    UnusableSecret,
)
from onceward.http.admin_app import ADMIN, AdminApi
from onceward.http.auth import Access, token_hash
from onceward.http.openapi.document import document
from onceward.http.receive_app import IngestApp
from onceward.http.responses import ASGIApp
from onceward.http.root_app import RootApp
from onceward.model.events import INGEST_SOURCE
from onceward.model.jobs import HandlerEntry
from onceward.operate.operator import Operator
from onceward.operate.retention import REGISTER_EVERY_SECONDS, STORE_EVERY_SECONDS, purge
from onceward.ports import Store
from onceward.receive.receiver import Receiver
from onceward.receive.recorder import Recorder
from onceward.receive.rejections import EVERY_SECONDS, Rejections
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.periodic import repeat
from onceward.runtime.redact import redact
from onceward.settings import Settings
from onceward.sources.source import Source
from onceward.store.postgres.store import PostgresStore
from onceward.store.sqlite.store import SqliteStore
from onceward.work.handlers import Handler
from onceward.work.runner import JobRunner
from onceward.work.settlement import SettlementPolicy
from onceward.work.transaction import Transaction, UnitOfWork
from onceward.work.worker import Worker

_log = logging.getLogger("onceward.service")

Preparation = Callable[[Transaction], Awaitable[None]]

REFRESH_SECRETS_SECONDS: Final = 5.0
MAX_PROVISIONED_SECRETS: Final = 5
"""How many secrets that a sender handed over are tried, the newest first."""
FIRST_HOLDER: Final = "admin"
"""Whose token is made at the first start."""


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
        self._configured = sources
        self.sources = dict(sources)
        self._secrets: list[bytes] = []
        for source in sources.values():
            self._mask(source)
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
        self._recorder = Recorder(self.store, settings, self._clock)
        self._rejections = Rejections(self.store, keep=settings.rejection_rows)
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
                    asyncio.create_task(repeat(self.store.maintenance, STORE_EVERY_SECONDS)),
                    asyncio.create_task(repeat(self._register, REGISTER_EVERY_SECONDS)),
                    asyncio.create_task(repeat(self._forget, STORE_EVERY_SECONDS)),
                    asyncio.create_task(repeat(self._rejections.flush, EVERY_SECONDS)),
                ]
                if any(source.provisions_secret for source in self.sources.values()):
                    recall = repeat(self._refresh_secrets, REFRESH_SECRETS_SECONDS)
                    self._upkeep.append(asyncio.create_task(recall))

    async def _open(self) -> None:
        try:
            await self.store.open(serving=True)
            await self._register()
            await self._prepare()
            await self._refresh_secrets()
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

    async def _forget(self) -> None:
        await purge(self.store, self.settings.dedupe_window_days)

    async def _refresh_secrets(self) -> None:
        """Take up the secrets that senders handed over, to this process or to another."""
        if not any(source.provisions_secret for source in self.sources.values()):
            return
        provisioned_secret: dict[str, list[bytes]] = {}
        for one in await self.store.provisioned_secrets():  # the newest first
            provisioned_secret.setdefault(one.source, []).append(one.secret)
        for name, source in self._configured.items():
            if source.provisions_secret:
                self.sources[name] = source.with_secrets(
                    provisioned_secret.get(name, [])[:MAX_PROVISIONED_SECRETS]
                )
                self._mask(self.sources[name])

    async def store_secret(self, source: str, secret: bytes) -> None:
        """Keep a secret that a sender handed over. Raises UnusableSecret or LedgerUnavailable."""
        with_secrets = self.sources[source].with_secrets([secret])
        if secret not in with_secrets.secrets:
            raise UnusableSecret("This cannot be a secret of the source.")
        try:
            await self.store.store_secret(source, secret)
        except StoreError as error:
            _log.warning("a secret for source %s could not be kept: %s", source, redact(str(error)))
            raise LedgerUnavailable("The ledger cannot be written now.") from error
        self.sources[source] = with_secrets
        self._mask(with_secrets)
        _log.info("source %s was handed a secret; `onceward secrets` shows it", source)

    def _mask(self, source: Source) -> None:
        """See that no error text shows its secrets."""
        self._secrets += [secret for secret in source.secrets if secret not in self._secrets]

    async def close(self) -> None:
        """Write what waits, and let go of the store."""
        self.is_closed = True
        if not self._upkeep:
            return
        maintenance, self._upkeep = self._upkeep, []
        for task in maintenance:
            task.cancel()
        await asyncio.gather(*maintenance, return_exceptions=True)
        await self._recorder.close()
        await self._rejections.flush()
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
        """Return a worker for the handlers of this process."""
        return Worker(
            name=f"{socket.gethostname()}:{os.getpid()}",
            queue=self.store,
            runner=JobRunner(
                queue=self.store,
                handlers=self.handlers,
                settlement_policy=SettlementPolicy(
                    base_seconds=self.settings.retry_base_seconds,
                    max_seconds=self.settings.retry_max_seconds,
                    random=random.random,
                    secrets=self._secrets,
                ),
                clock=self._clock,
                failpoints=self._failpoints,
            ),
            handlers=list(self.handlers),
            settings=self.settings,
            clock=self._clock,
        )

    def app(self) -> RootApp:
        """Receiving and the admin API in one application, as ``onceward serve`` runs it."""
        return RootApp(self.ingest_app(), self.admin_app(prefix=ADMIN), dev=self.dev)

    def ingest_app(self) -> IngestApp:
        """The application that receives."""
        return IngestApp(
            receiver=Receiver(
                sources=self.sources,
                recorder=self._recorder,
                clock=self._clock,
                failpoints=self._failpoints,
                rejections=self._rejections,
                store_secret=self.store_secret,
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
            operator=Operator(self.store, self.sources),
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
        async with UnitOfWork(
            lambda _: self.store.prepare(), self._clock, self._failpoints
        ) as unit:
            for preparation in self._preparations:
                await preparation(Transaction(unit))
            await unit.commit()


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
