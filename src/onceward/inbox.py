"""The Inbox: sources, handlers and a store, and the applications that serve them."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from onceward.errors import (
    ConfigurationError,
)
from onceward.http.auth import parse_tokens
from onceward.http.mount import MountedApp
from onceward.http.responses import ASGIApp
from onceward.model.events import INGEST_SOURCE
from onceward.runtime.failpoints import Failpoints
from onceward.service import Preparation, Service
from onceward.settings import Settings, resolve
from onceward.sources.configure import DuplicateBodyOption, make_source
from onceward.sources.presets import Preset
from onceward.sources.schemes import Scheme
from onceward.sources.source import Source
from onceward.work.builtin import BUILTIN_HANDLERS
from onceward.work.handlers import Handler, HandlerFunction, TransactionMode, make_handler

_log = logging.getLogger("onceward.inbox")

F = TypeVar("F", bound=HandlerFunction)


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
        duplicate_body: DuplicateBodyOption | None = None,
        volatile_fields: Iterable[str] | None = None,
        keep_rejected: bool = False,
    ) -> None:
        """Take webhooks from a sender at ``POST /webhooks/{name}``.

        `preset` says how the sender signs; without it, the preset of the same name, else ``hmac``.
        `scheme` names one of the preset's, or is one of your own. Requests signed with any of the
        `secrets` are accepted, so that secrets can be rotated. `url` is the public URL, for senders
        that sign it. `verify_token` is a token of your choice with which Meta, Asana and Notion
        identify themselves when they first call. `id`, `type` and `reference` are selectors:
        ``header:Name`` or ``json:path``. `duplicate_body` says what happens to an event whose body
        came before under another id: ``allow``, ``flag`` or ``hold``. `volatile_fields` names body
        fields that differ between deliveries of one event. `keep_rejected` keeps requests that do
        not verify, so that they can be verified again after a secret was corrected.
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
            duplicate_body=duplicate_body,
            volatile_fields=volatile_fields,
            keep_rejected=keep_rejected,
        )
        if name in self._sources:
            msg = f"source {name!r}: there is one of this name already"
            raise ConfigurationError(msg)
        self._sources[name] = source
        for event_type, builtin in source.base.builtin_handlers.items():
            self.on(event_type, source=name, name=f"{name}-{builtin}")(BUILTIN_HANDLERS[builtin])

    @property
    def sources(self) -> Mapping[str, Source]:
        """The sources by their names."""
        return MappingProxyType(self._sources)

    def on(
        self,
        *patterns: str,
        source: str | None = None,
        name: str | None = None,
        model: Any = None,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        transaction: TransactionMode = "own",
    ) -> Callable[[F], F]:
        """Register a function for event types: ``invoice.paid``, ``invoice.*`` or ``*``.

        The function gets the arguments that it names: `event`, `tx`, `effects`. `source` limits it
        to one source. Jobs store its name, or `name`: keep that name when you rename the function.
        A `model` validates the payload first. ``transaction="shared"`` declares that everything the
        function does is in `tx` and `effects`: its jobs may then share a commit with other jobs,
        and run again when one of those fails. Raise ConfigurationError for what cannot work.
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
                transaction=transaction,
            )
            if handler.name in self._handlers:
                msg = f"Handler {handler.name}: the name is already in use; pass another name="
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
        for handler in self._handlers.values():
            faults += handler.faults_with(settings)
        faults += _horizon_faults(settings, self._sources.values())
        if faults:
            raise ConfigurationError(faults)
        return Service(
            settings=settings,
            sources=self._sources,
            handlers={
                name: handler.with_defaults(settings) for name, handler in self._handlers.items()
            },
            preparations=self._preparations,
            retired=self._retired,
            tokens=parse_tokens(environment.get("ONCEWARD_ADMIN_TOKENS", "")),
            failpoints=Failpoints(environment.get("ONCEWARD_FAILPOINTS", "")),
            dev=dev,
        )


def _horizon_faults(settings: Settings, sources: Iterable[Source]) -> list[str]:
    """Why events would be forgotten too early, if they would."""
    if not settings.dedupe_window_days:
        return []
    return [
        f"dedupe_window_days is {settings.dedupe_window_days}, but source {source.name!r} can "
        f"resend an event for {days:g} days, by itself or by hand: it would be recorded as new. "
        f"Set dedupe_window_days to {math.ceil(days)} or more"
        for source in sources
        if settings.dedupe_window_days < (days := source.base.resends_for_days)
    ]
