"""The Inbox: a team's sources, handlers and settings."""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar, Unpack

from onceward.errors import ConfigurationError
from onceward.model.events import INGEST_SOURCE
from onceward.model.retry import default_faults
from onceward.runtime.code_location import frame_line
from onceward.runtime.suggest import suggest_or_list
from onceward.settings import (
    Settings,
    SettingsOptions,
    check_options,
    default_database_note,
    misspelled_variables,
    resolve,
)
from onceward.sources.configure import SourceOptions, make_source
from onceward.sources.presets.preset import DEFAULT_MANUAL_RESEND_DAYS
from onceward.sources.source import Source
from onceward.work.builtin import BUILTIN_HANDLERS
from onceward.work.definition.batches import BatchOptions, make_batch_handler
from onceward.work.definition.functions import HandlerFunction, is_function
from onceward.work.definition.handlers import Handler, HandlerOptions, make_handler
from onceward.work.definition.preparation import Preparation, preparation_faults
from onceward.work.forwarding.forward import ForwardOptions, make_forward
from onceward.work.inline.rules import inline_faults, inline_warnings
from onceward.work.outside.declaration import EffectOptions, OutsideEffects, make_effect

if TYPE_CHECKING:  # imported when the inbox runs: half of the package is behind it
    from onceward.http.responses import ASGIApp
    from onceward.service import Service

_log = logging.getLogger("onceward.settings")

F = TypeVar("F", bound=HandlerFunction)

_OPENS_ITSELF: Final = (
    "a mounted inbox opens itself at its first request, and `onceward serve app.py` opens it at "
    "start"
)
_SERVE_ADVICE: Final = (
    "an inbox is not an application: serve the app that mounts it, such as `uvicorn app:app`, or "
    "run `onceward serve app.py`"
)
_ALTERNATIVES: Final = {
    **dict.fromkeys(
        ("start", "startup", "open", "connect", "lifespan", "close", "stop", "shutdown"),
        f": {_OPENS_ITSELF}",
    ),
    **dict.fromkeys(
        ("run", "serve", "work", "worker", "workers"),
        ": run `onceward serve app.py`, or `onceward work app.py` beside a mounted inbox",
    ),
    **dict.fromkeys(
        ("post", "get", "put", "route", "webhook", "handler", "handle", "event", "subscribe"),
        '; write @inbox.on("event.type", source="…") above a handler',
    ),
    **dict.fromkeys(
        ("app", "router", "routes", "mount", "wsgi"),
        '; mount inbox.asgi() in your app: app.mount("/hooks", inbox.asgi())',
    ),
}
"""Advice for names that users expect an Inbox to have."""


def _alternative(name: str) -> str:
    if name.startswith("_"):  # FastAPI asks a router for its private names
        return '; mount it: app.mount("/hooks", inbox.asgi())'
    if name in _ALTERNATIVES:
        return _ALTERNATIVES[name]
    names = [each for each in vars(Inbox) if not each.startswith("_")]
    return suggest_or_list(name, names, "it has")


def _mount_advice(method: str) -> str:
    path = "/hooks" if method == "asgi" else "/ops"
    call = f"inbox.{method}()"
    return f'mount {call}, with parentheses: app.mount("{path}", {call})'


def _without_arguments(method: Callable[[Inbox], ASGIApp]) -> Callable[[Inbox], ASGIApp]:
    """Refuse the arguments of an ASGI application: then the method itself was mounted."""

    @functools.wraps(method)
    def call(inbox: Inbox, *arguments: object) -> ASGIApp:
        if arguments:
            raise ConfigurationError(_mount_advice(method.__name__))
        return method(inbox)

    return call


def _require_function(value: object, method: str, line: str) -> None:
    """Raise ConfigurationError if a method of the inbox decorates anything but a function."""
    if not is_function(value):
        kind = "a class" if isinstance(value, type) else f"a {type(value).__name__}"
        where = f"{line}: @inbox.{method}(…)"
        raise ConfigurationError(f"{where} needs a function, not {kind}; put it above a function")


class Inbox:
    """A team's sources, handlers and settings.

    `database` is ``sqlite:///file`` or ``postgresql://…``. The default is the environment's
    ``ONCEWARD_DATABASE_URL``, then ``onceward.db`` in the current folder. Further settings are
    keyword arguments.
    """

    def __init__(self, database: str | None = None, **settings: Unpack[SettingsOptions]) -> None:
        self._settings: dict[str, Any] = dict(settings)
        if database is not None:
            self._settings["database_url"] = database
        check_options(self._settings)
        self._sources: dict[str, Source] = {}
        self._handlers: dict[str, Handler] = {}
        self._effects = OutsideEffects()
        self._unapplied: dict[Callable[..., Any], tuple[str, str]] = {}
        """The lines that call `on` or `on_batch`, and apply the result to no function."""
        self._preparations: list[Preparation] = []
        self._retired: list[str] = []
        self._mounted: Service | None = None

    def source(self, name: str, **options: Unpack[SourceOptions]) -> None:
        """Receive webhooks from a sender at ``POST /webhooks/{name}``.

        - `preset`: how the sender signs, as a name or a `Preset`. Default: the preset called
          `name`. For a sender of your own: ``hmac``.
        - `scheme`: the name of one of the preset's schemes, or a scheme of your own. Default: the
          preset's first.
        - `secrets`: a list of text or bytes. A request signed with any of them is accepted, so that
          secrets can be rotated.
        - `unsigned`: accept requests from anyone. Default: False.
        - `url`: the public URL, as registered with the provider. Required for senders that sign it.
        - `verify_token`: a token of your choice with which Meta, Asana and Notion identify
          themselves when they first call.
        - `signature_header`, `signature_prefix`: for the preset ``hmac``, the header that carries
          the signature, and the text before the signature.
        - `id`, `type`, `reference`: selectors such as ``header:Name`` or ``json:path``. `id` and
          `type` may be lists, whose values are joined. Default: the preset's.
        - `tolerance_seconds`: how far the signed time may be off. Default: the preset's.
        - `keep_headers`: a list of headers to store with the payload, beyond the preset's.
        - `duplicate_body`: what happens to an event whose body was received before under another
          id: ``allow``, ``flag`` or ``hold``. Default: ``flag`` if the body is signed and the id is
          not, else ``allow``.
        - `volatile_fields`: a list of body fields that differ between deliveries of one event.
          Default: the preset's.
        - `keep_rejected`: store requests that do not verify, so that they can be verified again
          after a secret was corrected. Default: False.
        - `retry`: the delay between attempts, as for `on`. The rule of a handler wins over it.
        - `unknown_types`: what happens to an event of a type that no handler wants: ``ignore``, or
          ``review``, which keeps it until a person routes or dismisses it. Default: ``ignore``.
        - `mode`: ``inline`` runs the handlers within the request, and commits their writes with
          the event before the response. Default: ``background``, in a worker.

        Raises ConfigurationError with every fault.
        """
        source = make_source(name, **options)
        if name in self._sources:
            raise ConfigurationError(f"source {name!r}: another source already has this name")
        self._sources[name] = source
        for event_type, builtin in source.preset.builtin_handlers.items():
            self._add_handler(
                make_handler(
                    BUILTIN_HANDLERS[builtin], [event_type], source=name, name=f"{name}-{builtin}"
                )
            )

    @property
    def sources(self) -> Mapping[str, Source]:
        """The configured sources, by name."""
        return MappingProxyType(self._sources)

    def on(self, *patterns: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Register a function for event types: ``invoice.paid``, ``invoice.*`` or ``*``.

        The function gets the arguments that it names: `event`, `tx`, `effects`.

        - `source`: the only source whose events it gets. Default: every source.
        - `name`: the name that jobs store. Keep it if you rename the function. Default: its name.
        - `model`: validates the payload first. Default: the model in ``Event[Model]``.
        - `when`: which of the events it wants. A mapping from paths into the payload to a value or
          a list of values, such as ``{"data.status": ["paid", "sent"]}``, decides when an event is
          recorded; a function ``(event) -> bool`` decides in the worker.
        - `timeout_seconds`: how long a call may take. Default: ``handler_timeout_seconds``.
        - `max_attempts`: how many attempts a job has. Default: the setting of that name.
        - `retry`: the delay between attempts: a `Retry`, or one for each class of errors, with None
          for errors that are not retried.
        - `on_failed`: a function of `event`, `tx` and `error`, or of some of them. It runs in the
          transaction that ends a job as failed, and commits with it.
        - `transaction`: ``shared`` declares that everything the function does is in `tx` and
          `effects`. Its jobs may then share a commit with other jobs, and run again when one of
          those fails. Default: ``own``.
        - `version`, `version_key`: paths into the payload, such as ``created`` and
          ``data.object.id``. An event that is older than what its key has applied ends `ignored`.
        - `ordering_key`: a path into the payload, such as ``data.object.id`` or ``items.0.id``.
          Jobs with the same value run one at a time, in order of arrival. A job without a value
          runs at any time.
        - `on_head_failed`: what the later jobs of a key do when one has failed for good: ``hold``,
          until an operator requeues or cancels it, or ``continue``. Default: ``hold``.
        - `concurrency`: how many of its jobs run at once over all workers, at most.
        - `rate`: how many of them start in a second, minute, hour or day, at most: ``100/m``.

        Raise ConfigurationError for what cannot work.
        """
        line = frame_line(sys._getframe(1))  # noqa: SLF001 - inspect.stack() reads files
        return self._register(
            "on", line, patterns, lambda each: make_handler(each, patterns, **options)
        )

    def on_batch(self, *patterns: str, **options: Unpack[BatchOptions]) -> Callable[[F], F]:
        """Register a function that gets many events in one call, and one transaction for them.

        The function gets `events`, a list in the order of arrival, and `tx`. Its writes and the
        `done` of all their jobs commit together. If it fails, nothing is committed, no attempt is
        counted, and each event is tried alone, in a call with a list of one.

        - `max_events`: the number of events in one call, from 1 to 1,000. Default: 200. A call gets
          the events that are due, and does not wait for more.

        The options `source`, `name`, `model`, `when`, `timeout_seconds`, `max_attempts`, `retry`,
        `concurrency`, `rate` and `on_failed` are those of `on`. A timeout is that of one call;
        `concurrency` and `rate` count events.

        Raise ConfigurationError for what cannot work.
        """
        line = frame_line(sys._getframe(1))  # noqa: SLF001
        return self._register(
            "on_batch", line, patterns, lambda each: make_batch_handler(each, patterns, **options)
        )

    def _register(
        self, method: str, line: str, patterns: tuple[str, ...], make: Callable[[F], Handler]
    ) -> Callable[[F], F]:
        """Return the decorator that makes a handler of a function."""
        if patterns and callable(patterns[0]):
            raise ConfigurationError(
                f"{line}: @inbox.{method} needs the event types in parentheses; "
                f'write @inbox.{method}("invoice.paid")'
            )

        def decorate(function: F) -> F:
            self._unapplied.pop(decorate, None)
            _require_function(function, method, line)
            self._add_handler(make(function))
            return function

        self._unapplied[decorate] = line, method
        return decorate

    def _add_handler(self, handler: Handler) -> None:
        if other := self._handlers.get(handler.name):
            raise ConfigurationError(
                f"{handler.label}: the name is already in use by {other.label}; "
                "rename the function, or pass another name="
            )
        self._handlers[handler.name] = handler

    def effect(self, *misplaced: Never, **options: Unpack[EffectOptions]) -> Callable[[F], F]:
        """Declare a function that acts on another system, for ``effects.call``.

        The function is returned as it is. If it has a parameter `idempotency_key`, it is given the
        key of the effect.

        - `timeout_seconds`: how long a call may take. Default: the setting
          ``effect_timeout_seconds``.
        - `retry_safe_for`: for how long after the first call the other side recognises the key of a
          repeated call and does nothing: ``24h``, ``30m``, ``7d``. A call whose outcome is unknown
          is then repeated within that time.
        - `reconcile`: a function that gets the key and the arguments of the call, and asks the
          other side. It returns `Applied(result)`, `NotApplied()` or `StillUnknown()`.
        - `not_applied`: an exception class, or a tuple of them, that mean: the call was certainly
          not applied, and may be repeated. `EffectNotApplied` always does.
        - `name`: the name that the ledger stores. Default: the name of the function.

        Without `retry_safe_for` and `reconcile`, a job whose call has an unknown outcome fails and
        waits for a person. Raise ConfigurationError for what cannot work.
        """
        line = frame_line(sys._getframe(1))  # noqa: SLF001
        if misplaced:
            raise ConfigurationError(
                f"{line}: the options of @inbox.effect are named, in parentheses; write "
                "@inbox.effect() above a function"
            )

        def decorate(function: F) -> F:
            _require_function(function, "effect", line)
            self._effects.add(make_effect(function, **options))
            return function

        return decorate

    def forward(
        self,
        *patterns: str,
        **options: Unpack[ForwardOptions],
    ) -> None:
        """Post each event of some types to another app, signed after Standard Webhooks.

        `to` is the URL, and `secret` begins with ``whsec_``; a list signs with each of its secrets.
        A forward is a handler, and has the options of `on`, such as `when` and `on_failed`, except
        `model` and `transaction`. These differ, or are its own:

        - `name`: it is part of ``webhook-id``. Default: ``forward-`` and the host.
        - `timeout_seconds`: how long the app may take to respond. Default: 15.
        - `retry_safe_for`: for how long the app recognises the ``webhook-id`` of an event that is
          sent again because its response was lost. Default: ``3d``. None: a person decides.
        - `allow_private`: send to private addresses, and over plain HTTP. Default: False.

        Raise ConfigurationError for what cannot work.
        """
        line = frame_line(sys._getframe(1))  # noqa: SLF001
        handler, effect = make_forward(patterns, line=line, **options)
        self._add_handler(handler)
        self._effects.add(effect)

    def at_start(self, function: Preparation | None = None) -> Preparation:
        """Register an async function that runs with a transaction `tx` when the inbox opens.

        Use it to create tables: ``CREATE TABLE IF NOT EXISTS …``. One process runs it at a time.
        Raise ConfigurationError for a function that cannot run.
        """
        line = frame_line(sys._getframe(1))  # noqa: SLF001
        if function is None:
            raise ConfigurationError(f"{line}: write @inbox.at_start without parentheses")
        if faults := list(preparation_faults(function)):
            raise ConfigurationError([f"{line}: @inbox.at_start: {fault}" for fault in faults])
        self._preparations.append(function)
        return function

    def retire(self, *names: str) -> None:
        """Create no more jobs for handlers that were removed from the code.

        Jobs that are queued already stay queued.
        """
        self._retired += names

    @_without_arguments
    def asgi(self) -> ASGIApp:
        """Return an ASGI application that receives, and runs the handlers of inline sources.

        Sources and handlers may follow. Raises ConfigurationError for what they cannot correct.
        """
        return self._mounted_app(lambda service: service.receive_app())

    @_without_arguments
    def admin_asgi(self) -> ASGIApp:
        """Return an ASGI application with the admin API at its root. It requires a token.

        Raises ConfigurationError as `asgi` does.
        """
        return self._mounted_app(lambda service: service.admin_app(prefix=""))

    def __call__(self, scope: object = None, *_: object) -> Never:
        """Raise ConfigurationError: an inbox is not an application."""
        # A framework mounts with its own app or a path; uvicorn tries a call without arguments.
        is_mounted = isinstance(scope, dict) and bool("app" in scope or scope.get("root_path"))
        raise ConfigurationError(_mount_advice("asgi") if is_mounted else _SERVE_ADVICE)

    async def __aenter__(self) -> Never:
        """Raise ConfigurationError: an inbox opens itself."""
        raise ConfigurationError(f"`async with inbox` is not needed: {_OPENS_ITSELF}")

    async def __aexit__(self, *_: object) -> None:
        """Complete the protocol, so that `__aenter__` is called."""

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError, with what to write instead."""
            advice = "" if name.startswith("__") else _alternative(name)
            raise AttributeError(f"Inbox has no {name!r}{advice}")

    def _mounted_app(self, build: Callable[[Service], ASGIApp]) -> ASGIApp:
        from onceward.service import check_service, mount_service  # noqa: PLC0415

        settings = resolve(code=self._settings, environment=os.environ)
        if faults := self._setting_faults(settings):
            raise ConfigurationError(faults)
        check_service(settings, os.environ)
        return mount_service(self._mount, build)

    def _mount(self) -> Service:
        """Return the service that all mounted applications share."""
        if self._mounted is None or self._mounted.is_closed:
            self._mounted = self._build(None, mounted=True)
        return self._mounted

    def _setting_faults(self, settings: Settings) -> list[str]:
        """List the sources and handlers that cannot work with the settings."""
        faults = [
            fault for handler in self._handlers.values() for fault in handler.faults_with(settings)
        ]
        faults += _retry_faults(settings, self._sources.values())
        faults += inline_faults(self._handlers.values(), self._sources.values())
        return faults + _resend_faults(settings, self._sources.values())

    def service(
        self, command_line: Mapping[str, Any] | None = None, *, dev: bool = False
    ) -> Service:
        """Build the service. Options in `command_line` override the code.

        Raises ConfigurationError with every invalid setting, else with every other fault.
        """
        return self._build(command_line, dev=dev)

    def _build(
        self, command_line: Mapping[str, Any] | None, *, dev: bool = False, mounted: bool = False
    ) -> Service:
        from onceward.service import Service  # noqa: PLC0415

        environment = dict(os.environ)
        settings = resolve(command_line=command_line, code=self._settings, environment=environment)
        if self._mounted is None:  # a mounted service that failed to open is built again
            seconds = settings.inline_timeout_seconds
            for warning in (
                *misspelled_variables(environment),
                *inline_warnings(self._handlers.values(), self._sources.values(), seconds),
            ):
                _log.warning(warning)
        sources = {INGEST_SOURCE, *self._sources}
        faults = [
            f"{line}: inbox.{method}(…) registers nothing by itself; write @inbox.{method}(…) "
            "above a function"
            for line, method in self._unapplied.values()
        ]
        faults += [
            f"{handler.label}: there is no source {source!r}"
            f"{suggest_or_list(source, sources, 'the sources are')}"
            for handler in self._handlers.values()
            for source in dict.fromkeys(route.source for route in handler.routes)
            if source is not None and source not in sources
        ]
        faults += self._setting_faults(settings)
        if faults:
            raise ConfigurationError(faults)
        return Service(
            settings=settings,
            sources=self._sources,
            effects=self._effects,
            handlers={
                name: handler.with_defaults(settings) for name, handler in self._handlers.items()
            },
            preparations=self._preparations,
            retired=self._retired,
            environment=environment,
            dev=dev,
            mounted=mounted,
            database_note=default_database_note(
                {*self._settings, *(command_line or ())}, environment
            ),
        )


def _retry_faults(settings: Settings, sources: Iterable[Source]) -> list[str]:
    """List the sources whose retry rules cannot work with the settings."""
    defaults = (settings.retry_base_seconds, settings.retry_max_seconds)
    return [
        f"source {source.name!r}: {fault}"
        for source in sources
        for fault in default_faults(source.retry, *defaults)
    ]


def _resend_faults(settings: Settings, sources: Collection[Source]) -> list[str]:
    """List the sources whose senders can resend an event after its id or a key was forgotten.

    An app without sources works on a ledger of others: nothing is known about their senders.
    """
    kept_days = {
        "dedupe_window_days": (settings.dedupe_window_days, "it would be recorded as new"),
        "effect_days": (settings.effect_days, "its effects would happen again"),
    }
    senders = {f"source {each.name!r}": each.preset.max_resend_days for each in sources} or {
        "a source of another app": float(DEFAULT_MANUAL_RESEND_DAYS)
    }
    return [
        f"{setting} is {kept}, but {sender} can resend an event for {days:g} days, "
        f"automatically or manually: {consequence}. Set {setting} to {math.ceil(days)} or more"
        for setting, (kept, consequence) in kept_days.items()
        for sender, days in senders.items()
        if kept and kept < days
    ]
