"""An app mounted in the user's own, opened at startup or at its first request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from onceward.errors import OncewardError, StoreError
from onceward.http.receive_app import route_path
from onceward.http.responses import ASGIApp, Receive, Scope, Send, error_response
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable, redact

_log = logging.getLogger("onceward.http")


class Mountable(Protocol):
    """A service that can be opened and closed."""

    async def open(self) -> None:
        """Open the service; a second call does nothing. Raises OncewardError."""

    async def close(self) -> None:
        """Close the service. It cannot be opened again."""


S = TypeVar("S", bound=Mountable)


class MountedApp(Generic[S]):
    """An ASGI app of a service, opened at startup or at its first request."""

    def __init__(self, service: Callable[[], S], build: Callable[[S], ASGIApp]) -> None:
        self._service = service
        self._build = build
        self._app: ASGIApp | None = None
        self._opened: S | None = None

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
        except StoreError as error:
            reason = redact(str(error))
            fields = LogFields(error=reason, path=printable(scope["path"]))
            _log.warning("inbox unavailable; asking senders to retry: %s", reason, extra=fields)
            await error_response(error).send(send)
            return
        await app({**scope, "path": route_path(scope), "root_path": ""}, receive, send)

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
                    reason = f"Onceward: {redact(str(error))}"
                    await send({"type": "lifespan.startup.failed", "message": reason})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._service().close()
                await send({"type": "lifespan.shutdown.complete"})
                return
