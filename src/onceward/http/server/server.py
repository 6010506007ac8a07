"""The HTTP server: uvicorn with our connection protocol, and the listening socket."""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
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

_log = logging.getLogger("onceward.http")


class Server(uvicorn.Server):
    """A uvicorn server that leaves logging and signals to the process."""

    def __init__(self, app: Application, settings: Settings) -> None:
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
                timeout_graceful_shutdown=max(1, int(settings.drain_seconds)),
                backlog=BACKLOG,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: the process handles them."""
        yield


def allow_connections(count: int) -> None:
    """Raise the process's limit on open files to what so many connections need.

    Logs a warning if the system does not allow it: further connections would not be accepted, and
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
    """Return a listening socket. Raises ConfigurationError if the address cannot be used."""
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
