"""The HTTP server: uvicorn, with limits on its senders that it does not have itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import uvicorn

from onceward.errors import ConfigurationError
from onceward.http.server.protocol import Application, BoundedProtocol
from onceward.http.server.writes import BufferedTransport, TickQueue
from onceward.settings import Settings

BACKLOG: Final = 4096
REQUESTS_PER_TICK: Final = 16


class Server(uvicorn.Server):
    """A server in a process that has more to do: logs and signals are left to the process."""

    def __init__(self, app: Application, settings: Settings) -> None:
        protocol = partial(
            BoundedProtocol,
            application=app,
            requests=TickQueue(app.handle_directly, limit=REQUESTS_PER_TICK),
            flushes=TickQueue(BufferedTransport.flush),
            settings=settings,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,  # type: ignore[arg-type] # a factory will do
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
        """Capture none."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket on which to serve. Raises ConfigurationError that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        msg = f"Cannot listen on {host}:{port}: {reason}. Choose another with --host or --port."
        raise ConfigurationError(msg) from error
    return listener
