"""The composition root: wires store, receiver, worker and admin API for one process."""

from __future__ import annotations

import asyncio
import os
import random
import secrets as random_secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from onceward.accelerators.id_caches import make_id_cache
from onceward.errors import RejectionCause, StoreUnavailable
from onceward.http.access_log import AccessLog, DirectAccessLog
from onceward.http.admin_app import ADMIN, AdminApp
from onceward.http.auth import TOKENS_VARIABLE, Authenticator, parse_tokens, token_hash
from onceward.http.mount import MountedApp
from onceward.http.proxies import Proxies
from onceward.http.receive_app import ReceiveApp
from onceward.http.responses import ASGIApp
from onceward.http.root_app import RootApp
from onceward.http.throttle import Throttle
from onceward.model.events import INGEST_SOURCE
from onceward.model.jobs import HandlerEntry
from onceward.model.workers import HEARTBEAT_SECONDS
from onceward.operate.delay_watch import DELAY_INTERVAL_SECONDS, DelayWatch
from onceward.operate.ignored_watch import IGNORED_INTERVAL_SECONDS, IgnoredWatch, Subscription
from onceward.operate.maintenance import MAINTENANCE_INTERVAL_SECONDS, Maintenance
from onceward.operate.operator import Operator
from onceward.operate.pause_watch import InlineNames, PauseWatch
from onceward.operate.worker_watch import WorkerWatch
from onceward.ports import Duty
from onceward.ports.archive import PayloadArchive
from onceward.receive.live_sources import LiveSources
from onceward.receive.receiver import Receiver
from onceward.receive.recorder import CHECK_INTERVAL_SECONDS, Recorder
from onceward.receive.rejections import FLUSH_INTERVAL_SECONDS, Rejections
from onceward.receive.untyped_bodies import UntypedBodies
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.periodic import repeat
from onceward.runtime.redact import redact_url
from onceward.runtime.timeouts import GRACE_SECONDS
from onceward.settings import Settings
from onceward.sources.source import Source
from onceward.store.dialects import make_store
from onceward.work.definition.handlers import Handler
from onceward.work.definition.preparation import Preparation, run_preparations
from onceward.work.inline.requests import InlineRunner
from onceward.work.inline.rules import handlers_of_inline, inline_handlers, pause_modes
from onceward.work.outside.calls import OutsideCalls
from onceward.work.outside.declaration import OutsideEffects
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.runner import JobRunner
from onceward.work.running.transaction import UnitOfWork
from onceward.work.settling.settlement import SettlementPolicy
from onceward.work.worker import Worker

REGISTER_INTERVAL_SECONDS: Final = 60.0
REFRESH_SECRETS_INTERVAL_SECONDS: Final = 5.0
WAKE_INTERVAL_SECONDS: Final = 15.0
_BACKGROUND_END_SECONDS: Final = 1.0
FIRST_TOKEN_NAME: Final = "admin"  # noqa: S105 - the name of a token
"""The name of the admin token that the first start creates."""


class Service:
    """A running inbox. Once closed, or failed to open, it cannot be opened again."""

    def __init__(
        self,
        *,
        settings: Settings,
        sources: Mapping[str, Source],
        handlers: Mapping[str, Handler],
        effects: OutsideEffects,
        preparations: Sequence[Preparation],
        retired: Sequence[str],
        environment: Mapping[str, str],
        dev: bool,
        mounted: bool = False,
        database_note: str = "",
    ) -> None:
        self.settings = settings
        self.database_note = database_note
        """Why the database is the default one, or an empty text."""
        self._mounted = mounted
        self.handlers = handlers
        self._effects = effects
        self.dev = dev
        self.unhandled: list[str] = []
        """Handlers for which jobs are created, but which this process does not define."""
        self.is_closed = False
        self._preparations = preparations
        self._retired = retired
        self._tokens = dict(parse_tokens(environment.get(TOKENS_VARIABLE, "")))
        self._failpoints = failpoints = Failpoints(environment.get("ONCEWARD_FAILPOINTS", ""))
        self._clock = SystemClock()
        self._id_cache = make_id_cache(settings, sources.values(), failpoints, self._clock)
        self.store = make_store(settings, failpoints, self._clock, self._id_cache)
        self._live_sources = LiveSources(sources, self.store)
        self.sources: Mapping[str, Source] = self._live_sources.by_name
        self.maintenance = Maintenance(
            self.store, settings, self._clock, failpoints, archive=self.archive
        )
        self._recorder = Recorder(self.store, settings, self._clock)
        self._rejections = Rejections(self.store, keep=settings.rejection_rows)
        self._throttle = Throttle(self._clock)
        self._watch = WorkerWatch(
            self.store,
            self._clock,
            advice=self.worker_advice,
            database_text=database_note or f"This process uses {self.database}",
        )
        self._untyped_bodies = UntypedBodies()
        self._inline = InlineNames(
            frozenset(name for name, source in sources.items() if source.is_inline),
            frozenset(handlers_of_inline(handlers.values(), sources.values())),
        )
        self._pause_watch = PauseWatch(self.store, self._inline)
        self._delay_watch = DelayWatch(self._clock, is_single_process=settings.uses_sqlite)
        self._ignored_watch = IgnoredWatch(
            self.store,
            _subscriptions(handlers.values()),
            {name: source.preset.types for name, source in sources.items()},
            not_json=self._untyped_bodies.not_json,
            reviewed=[name for name, source in sources.items() if source.reviews_unknown],
        )
        self._abandoned_calls = AbandonedCalls(
            handlers,
            limit=max(settings.workers, 1),
            clock=self._clock,
            modes=pause_modes(handlers.values(), sources.values()),
        )
        self._receives = False
        self._works = False
        self._background: list[asyncio.Task[None]] = []
        self._opening = asyncio.Lock()

    def archive(self) -> PayloadArchive | None:
        """Return the archive of payloads, if one is set. Raise ConfigurationError."""
        url = self.settings.archive
        if not url:
            return None
        from onceward.archive.location import make_archive  # noqa: PLC0415 - few have one

        return make_archive(url, self._failpoints)

    @property
    def worker_advice(self) -> str:
        """The advice in the warning that no worker runs the handlers."""
        if self.settings.uses_sqlite:
            if self._mounted:
                return (
                    "On SQLite no worker can run beside a mounted inbox, and only inline sources "
                    '(mode="inline") run their handlers. Use PostgreSQL and run `onceward work '
                    "app.py` beside this app, or remove the mount and run `onceward serve app.py`, "
                    "which serves the webhooks alone"
                )
            return (
                "SQLite supports one process: run `onceward serve app.py`, which receives and "
                "runs handlers, or use PostgreSQL and run `onceward work app.py` as well"
            )
        return (
            "Run `onceward work app.py` as well, with the file that defines this inbox and with "
            "the same database"
        )

    @property
    def forwards(self) -> dict[str, str]:
        """The targets of the handlers that are forwards, by name."""
        handlers = self.handlers.values()
        return {each.name: each.forwards_to for each in handlers if each.forwards_to is not None}

    @property
    def database(self) -> str:
        """The URL of the database, without its password."""
        return redact_url(self.settings.database_url)

    async def open(self, *, receives: bool = True) -> None:
        """Open the store, register sources and handlers, and prepare the user's tables.

        A process that neither receives nor serves the admin API needs fewer privileges.
        """
        async with self._opening:
            if self.is_closed:
                raise StoreUnavailable("the inbox was closed")
            if not self._background:
                duties = Duty.RECEIVE if receives else Duty(0)
                runs_inline = receives and any(each.is_inline for each in self.sources.values())
                await self._open(duties | (Duty.WORK if self._works or runs_inline else Duty(0)))
                if self._id_cache is not None and receives:
                    await self._id_cache.open()
                self._background = self._start_background()

    async def _open(self, duties: Duty) -> None:
        try:
            self.archive()  # refuses one that cannot work
            await self.store.open(serving=True, duties=duties)
            await self._register()
            await self._prepare()
            await self._live_sources.refresh()
            await self._ignored_watch.start()
            self._tokens = self._tokens or await self.store.tokens()
        except BaseException:
            self.is_closed = True
            await self.store.close()
            raise

    def _start_background(self) -> list[asyncio.Task[None]]:
        periodic: list[tuple[Callable[[], Awaitable[object]], float]] = [
            (self.maintenance.run_if_elected, MAINTENANCE_INTERVAL_SECONDS),
            (self._register, REGISTER_INTERVAL_SECONDS),
            (self._rejections.flush, FLUSH_INTERVAL_SECONDS),
            (self._wake_parked, WAKE_INTERVAL_SECONDS),
            (self._watch.refresh, HEARTBEAT_SECONDS),
            (self._pause_watch.refresh, HEARTBEAT_SECONDS),
            (self._watch_delays, DELAY_INTERVAL_SECONDS),
            (self._report_ignored, IGNORED_INTERVAL_SECONDS),
            (self._check_recording, CHECK_INTERVAL_SECONDS),
        ]
        if self._live_sources.can_be_provisioned:
            periodic.append((self._live_sources.refresh, REFRESH_SECRETS_INTERVAL_SECONDS))
        return [asyncio.create_task(repeat(call, seconds)) for call, seconds in periodic]

    async def close(self) -> None:
        """Flush pending deliveries and rejections, and close the store."""
        self.is_closed = True
        if not self._background:
            return
        background, self._background = self._background, []
        for task in background:
            task.cancel()
        # A task may wait for a frozen database until its connection is closed. It saves nothing.
        await asyncio.wait(background, timeout=_BACKGROUND_END_SECONDS)
        await self._recorder.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._rejections.flush()
        if self._id_cache is not None:
            await self._id_cache.close()
        await self.store.close()
        await asyncio.wait(background, timeout=_BACKGROUND_END_SECONDS)

    async def _register(self) -> None:
        """Register routes; repeated so that they do not expire."""
        sources = [INGEST_SOURCE, *self.sources]
        routed = await self.store.register(sources, self._entries(), self._retired)
        self.unhandled = sorted(set(routed) - self.handlers.keys())
        self._watch.routed = frozenset(routed)

    def _entries(self) -> list[HandlerEntry]:
        return [
            HandlerEntry(
                handler.name,
                handler.max_attempts or self.settings.max_attempts,
                handler.routes,
                handler.rules,
                has_on_failed=handler.giving_up is not None,
            )
            for handler in self.handlers.values()
        ]

    async def _prepare(self) -> None:
        if not self._preparations:
            return
        unit = UnitOfWork(lambda *_: self.store.prepare(), self._clock, self._failpoints)
        await run_preparations(unit, self._preparations)

    async def _wake_parked(self) -> None:
        if self._works:
            await self.store.wake_parked()

    async def _watch_delays(self) -> None:
        if self._receives and self._works:
            await self._delay_watch.take_sample()

    async def _report_ignored(self) -> None:
        if self._receives:
            await self._ignored_watch.refresh()

    async def _check_recording(self) -> None:
        if self._receives:
            await self._recorder.check()

    async def create_first_token(self) -> str | None:
        """Create an admin token if there is none. Return it; only its hash is stored."""
        if self.dev or self._tokens:
            return None
        token = random_secrets.token_urlsafe(32)
        sha256 = token_hash(token.encode())
        if not await self.store.add_first_token(FIRST_TOKEN_NAME, sha256):
            self._tokens = await self.store.tokens()  # another process was faster
            return None
        self._tokens[FIRST_TOKEN_NAME] = sha256
        return token

    def worker(self) -> Worker:
        """Return a worker for the handlers of this process, and count them as running."""
        self._works = True
        self._watch.own_handlers = frozenset(self.handlers)
        worker = Worker(
            name=_process_name(),
            queue=self.store,
            registry=self.store,
            runner=self._job_runner(),
            handlers=list(self.handlers),
            settings=self.settings,
            clock=self._clock,
        )
        self._watch.own_name, self._watch.own_health = worker.name, worker.health
        return worker

    def _job_runner(self) -> JobRunner:
        return JobRunner(
            queue=self.store,
            handlers=self.handlers,
            settlement_policy=SettlementPolicy(
                base_seconds=self.settings.retry_base_seconds,
                max_seconds=self.settings.retry_max_seconds,
                random=random.random,
                secrets=self._live_sources.secrets,
                show_values=self.settings.show_error_values,
                handler_rules={name: each.retry for name, each in self.handlers.items()},
                source_rules={name: each.retry for name, each in self.sources.items()},
            ),
            clock=self._clock,
            failpoints=self._failpoints,
            abandoned_calls=self._abandoned_calls,
            outside_calls=OutsideCalls(
                store=self.store,
                effects=self._effects,
                timeout_seconds=self.settings.effect_timeout_seconds,
                clock=self._clock,
                failpoints=self._failpoints,
                make_nonce=partial(random_secrets.token_hex, 8),
                secrets=self._live_sources.secrets,
            ),
        )

    def _inline_runner(self) -> InlineRunner:
        """Return the runner of the requests to inline sources."""
        return InlineRunner(
            ledger=self.store,
            record=self._recorder.submit,
            runner=self._job_runner(),
            handlers=self.handlers,
            settings=self.settings,
            clock=self._clock,
            failpoints=self._failpoints,
            on_outage=self._recorder.count_retry,
            worker=_process_name(),
        )

    def app(self) -> RootApp | DirectAccessLog:
        """Return an application that receives and serves the admin API, for ``onceward serve``."""
        app = RootApp(self._receive_app(), self._admin_app(prefix=ADMIN), dev=self.dev)
        return DirectAccessLog(app, self._clock) if self.settings.access_log else app

    def receive_app(self) -> ReceiveApp | DirectAccessLog:
        """Return an application that receives, and runs the handlers of inline sources."""
        app = self._receive_app()
        return DirectAccessLog(app, self._clock) if self.settings.access_log else app

    def admin_app(self, *, prefix: str) -> ASGIApp:
        """Return the admin API, with its routes below `prefix`."""
        app = self._admin_app(prefix=prefix)
        return AccessLog(app, self._clock) if self.settings.access_log else app

    def _receive_app(self) -> ReceiveApp:
        self._receives = True
        inline = inline_handlers(self.handlers.values(), self.sources.values())
        self._watch.inline_handlers = frozenset(inline)
        return ReceiveApp(
            receiver=Receiver(
                sources=self.sources,
                recorder=self._recorder,
                clock=self._clock,
                failpoints=self._failpoints,
                rejections=self._rejections,
                untyped_bodies=self._untyped_bodies,
            ),
            store_secret=self._live_sources.store_secret,
            process_inline=self._inline_runner().process,
            authenticator=self._authenticator(),
            ready=self.store.ready,
            warnings=lambda: (
                *(self.store.warnings or self._recorder.warnings),
                *self._watch.warnings,
                *self._pause_watch.warnings,
                *self._ignored_watch.warnings,
                *self.maintenance.warnings,
                *(self._id_cache.warnings if self._id_cache else ()),
            ),
            settings=self.settings,
            clock=self._clock,
            failpoints=self._failpoints,
        )

    def _admin_app(self, *, prefix: str) -> ASGIApp:
        api = AdminApp(
            operator=Operator(
                self.store,
                self.sources,
                self._inline,
                live_workers=self.store.live_workers,
                forwards=self.forwards,
            ),
            clock=self._clock,
            authenticator=self._authenticator(),
            settings=self.settings,
            document=partial(self._document, prefix),
        )
        return api.app(prefix)

    def _document(self, prefix: str) -> Mapping[str, object]:
        from onceward.http.openapi.document import document  # noqa: PLC0415 - rarely asked for

        return document(
            settings=self.settings,
            sources=self.sources if prefix else None,
            prefix=prefix,
            dev=self.dev,
        )

    def _authenticator(self) -> Authenticator:
        return Authenticator(
            tokens=self._tokens,
            throttle=self._throttle,
            proxies=Proxies(self.settings.trusted_proxies),
            count_failure=self._count_failure,
            allowed_hosts=self.settings.allowed_hosts,
            dev=self.dev,
        )

    def _count_failure(self, cause: RejectionCause, check: str) -> None:
        """Count a request without a valid admin token, as a rejection of `INGEST_SOURCE`."""
        self._rejections.count(INGEST_SOURCE, cause, check, self._clock.now())


def _process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _subscriptions(handlers: Iterable[Handler]) -> Iterator[Subscription]:
    for handler in handlers:
        for route in handler.routes:
            yield Subscription(handler.name, handler.label, route)


def check_service(settings: Settings, environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError for settings that no service can open with. Opens nothing."""
    parse_tokens(environment.get(TOKENS_VARIABLE, ""))
    make_store(settings, Failpoints(), SystemClock())
    make_id_cache(settings, (), Failpoints(), SystemClock())


def mount_service(service: Callable[[], Service], build: Callable[[Service], ASGIApp]) -> ASGIApp:
    """Return an app that opens a service at startup or at its first request."""
    return MountedApp(service, build, SystemClock())
