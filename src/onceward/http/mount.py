"""An app mounted in the user's own, opened at startup or at its first request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Never, Protocol, TypeVar

from onceward.errors import (
    ConfigurationError,
    OncewardError,
    StoreBlocked,
    StoreError,
    StoreUnavailable,
)
from onceward.http.paths import with_full_path
from onceward.http.responses import ASGIApp, Receive, Scope, Send, error_response
from onceward.runtime.clock import Clock
from onceward.runtime.line_limit import LineLimit, suppressed_text
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import as_sentence, one_line, printable, redact

_log = logging.getLogger("onceward.http")


class Mountable(Protocol):
    """A service that can be opened and closed."""

    @property
    def database(self) -> str:
        """The URL of the database, without its password."""

    async def open(self) -> None:
        """Open the service; a second call does nothing. Raises OncewardError."""

    async def close(self) -> None:
        """Close the service. It cannot be opened again."""


S = TypeVar("S", bound=Mountable)


class MountedApp(Generic[S]):
    """An ASGI app of a service, opened at startup or at its first request."""

    def __init__(
        self, service: Callable[[], S], build: Callable[[S], ASGIApp], clock: Clock
    ) -> None:
        self._service = service
        self._build = build
        self._clock = clock
        self._limit = LineLimit()
        self._app: ASGIApp | None = None
        self._opened: S | None = None

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError: a router is asked for its routes when it is included."""
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(
                f"this is an ASGI app, not a router: it has no {name!r}; "
                'mount it: app.mount("/hooks", inbox.asgi())'
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan of the server."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        try:
            app = await self._open()
        except OncewardError as error:
            self._log_unavailable(scope, error)
            is_mapped = isinstance(error, StoreError)
            response = error_response(error if is_mapped else StoreUnavailable())
            await response.send(send)
            return
        await app(with_full_path(scope), receive, send)

    def _log_unavailable(self, scope: Scope, error: OncewardError) -> None:
        """Log why senders get 503, at most once a second: as an error if waiting cannot help."""
        suppressed = self._limit.take(self._clock.monotonic())
        if suppressed is None:
            return
        reason = _reason(error)
        fields = LogFields(error=reason, path=printable(with_full_path(scope)["path"]))
        if suppressed:
            fields["suppressed"] = suppressed
        may_recover = isinstance(error, StoreError)
        is_unreachable = may_recover and not isinstance(error, StoreBlocked)
        level = logging.WARNING if may_recover else logging.ERROR
        message = "inbox unavailable; senders get 503 and retry: %s%s%s"
        advice = f" {self._database_advice()}" if is_unreachable else ""
        more = suppressed_text(suppressed)
        _log.log(level, message, as_sentence(reason), advice, more, extra=fields)

    def _database_advice(self) -> str:
        places = "ONCEWARD_DATABASE_URL, or Inbox(…) in the code"
        return f"Check the database {self._service().database}, set by {places}."

    async def _open(self) -> ASGIApp:
        service = self._service()
        await service.open()
        if self._app is None or self._opened is not service:
            self._app, self._opened = self._build(service), service
        return self._app

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._open()
                except OncewardError as error:
                    reason = f"Onceward: {_reason(error)}"
                    await send({"type": "lifespan.startup.failed", "message": reason})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._service().close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _reason(error: OncewardError) -> str:
    """Return why the service cannot open. A ConfigurationError has no secrets, but has paths."""
    text = one_line(str(error))
    return printable(text) if isinstance(error, ConfigurationError) else redact(text)
