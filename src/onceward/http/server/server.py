"""The HTTP server: uvicorn with our connection protocol, and the listening socket."""

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
"""Direct requests handled per loop iteration. More would delay the commits of earlier requests:
process and database would alternate instead of working in parallel (decision 0008)."""


class Server(uvicorn.Server):
    """A uvicorn server that leaves logging and signals to the process."""

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
                http=protocol,  # type: ignore[arg-type] # uvicorn only calls it
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
