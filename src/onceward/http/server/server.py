"""The HTTP server: uvicorn with our connection protocol, and the listening socket."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import uvicorn

from onceward.errors import ConfigurationError
from onceward.http.server.connection import Connection
from onceward.http.server.context import ServerContext
from onceward.http.server.exchange import Application
from onceward.runtime.log_fields import LogFields
from onceward.settings import Settings

BACKLOG: Final = 4096
OTHER_FILES: Final = 200
"""Files that a process needs beside its connections: the database, the log, refused clients."""

_DATE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.01
_MIN_DRAIN_SECONDS: Final = 1.0
"""The time for requests in progress, even if jobs get none."""

_log = logging.getLogger("onceward.http")


class Server(uvicorn.Server):
    """A uvicorn server that stops without delay, and leaves logging and signals to the process."""

    def __init__(self, app: Application, settings: Settings) -> None:
        self._drain_seconds = max(_MIN_DRAIN_SECONDS, settings.drain_seconds)
        self._stop_requested = asyncio.Event()
        own_protocol = partial(Connection, context=ServerContext(app, settings))
        super().__init__(
            uvicorn.Config(
                app,
                http=own_protocol if settings.own_http_protocol else "h11",  # type: ignore[arg-type] # uvicorn only calls it
                h11_max_incomplete_event_size=settings.max_header_bytes,
                limit_concurrency=None if settings.own_http_protocol else settings.max_connections,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
            )
        )

    def stop(self) -> None:
        """Accept no more connections, and end when the responses that are owed are sent."""
        self.should_exit = True
        self._stop_requested.set()

    async def main_loop(self) -> None:
        """Renew the date of the responses until the server is stopped."""
        while not self._stop_requested.is_set():
            await self.on_tick(0)  # uvicorn sets the date in every tenth tick, and in the first
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), _DATE_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close each connection after the responses that it owes, or when the time is over."""
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        await asyncio.sleep(_POLL_SECONDS)  # a connection that was just accepted is not listed yet
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn sets no event
                    await asyncio.sleep(_POLL_SECONDS)
        if tasks := self.server_state.tasks:
            message = "%d requests did not end within drain_seconds and were cancelled"
            _log.error(message, len(tasks), extra=LogFields(count=len(tasks)))
        for task in tasks:
            task.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: the process handles them."""
        yield


def allow_connections(count: int) -> None:
    """Raise the process's limit on open files to what so many connections need.

    Log a warning if the system does not allow it: further connections would not be accepted, and
    nothing would say so.
    """
    needed = count + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            message = (
                "the system allows this process %d open files, too few for max_connections (%d); "
                "raise its hard limit (ulimit -Hn), or lower max_connections"
            )
            _log.warning(message, allowed, count, extra=LogFields(count=allowed))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise ConfigurationError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket names its protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        msg = f"Cannot listen on {host}:{port}: {reason}. Choose another --host or --port."
        raise ConfigurationError(msg) from error
    return listener
