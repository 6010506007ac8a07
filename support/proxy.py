"""A TCP proxy in front of PostgreSQL that drops messages, freezes, or moves to another server."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from enum import Enum, auto
from typing import Self
from urllib.parse import urlsplit

CHUNK_BYTES = 65_536


class Mode(Enum):
    """What the proxy does with the data it receives."""

    FORWARD = auto()
    LOSE_REQUESTS = auto()
    """Drop the next request on a connection, and cut the connection."""
    LOSE_RESPONSES = auto()
    """Forward requests, drop the next response on a connection, and cut the connection."""
    LOSE_COMMITS = auto()
    """As LOSE_RESPONSES, but only the response to a COMMIT."""
    HOLD_REQUESTS = auto()
    """Drop the next request on a connection, and leave the connection open and silent."""


TO_SERVER = (Mode.LOSE_REQUESTS, Mode.HOLD_REQUESTS)
TO_CLIENT = (Mode.LOSE_RESPONSES, Mode.LOSE_COMMITS)
COMMITTED = b"COMMIT\0"


class Proxy:
    """Forwards connections to a database, and drops messages according to its mode.

    While it is frozen, connections stay open and no byte passes. A new connection is accepted, but
    gets no response. `thaw` delivers what was held, as a network does that was only interrupted.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = parts._replace(
            netloc=f"{parts.username}@127.0.0.1:{self._listener.getsockname()[1]}"
        ).geturl()
        self.mode = Mode.FORWARD
        self._after = b""
        self.losses = 0
        self._is_thawed = threading.Event()
        self._is_thawed.set()
        self._sockets: set[socket.socket] = set()
        self._sockets_lock = threading.Lock()
        self._stop, self._stopped = socket.socketpair()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.close()
        self._is_thawed.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        self._stopped.close()

    def lose(self, mode: Mode, after: bytes = b"") -> None:
        """Set the mode. With `after`, it applies only to the request that follows these bytes."""
        self._after = after
        self.mode = mode

    def freeze(self) -> None:
        """Pass nothing on, in either direction, and close nothing."""
        self._is_thawed.clear()

    def thaw(self) -> None:
        """Deliver what was held since `freeze`, and forward again."""
        self._is_thawed.set()

    def cut(self) -> None:
        """Close every connection, without the data that is held."""
        with self._sockets_lock:
            for end in self._sockets:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def switch(self, url: str) -> None:
        """Cut every connection, and connect new ones to another server."""
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self.cut()

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._stopped], [], [])
            if self._stopped in ready:
                return
            client, _ = self._listener.accept()
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), self._registered(client):
            self._is_thawed.wait()
            with socket.create_connection(self._target) as server, self._registered(server):
                self._forward(client, server)

    @contextlib.contextmanager
    def _registered(self, end: socket.socket) -> Iterator[None]:
        """Let `cut` find a socket while it is open."""
        with self._sockets_lock:
            self._sockets.add(end)
        try:
            yield
        finally:
            with self._sockets_lock:
                self._sockets.remove(end)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        """Forward until one side closes, or the mode drops something."""
        is_next = applies = False
        while True:
            ready, _, _ = select.select([client, server, self._stopped], [], [])
            self._is_thawed.wait()
            if self._stopped in ready:
                return
            for source, sink in ((client, server), (server, client)):
                if source not in ready:
                    continue
                data = source.recv(CHUNK_BYTES)
                if not data:
                    return
                if source is client:
                    applies = is_next or not self._after
                    is_next = bool(self._after) and self._after in data
                if applies and self._loses(data, to_server=source is client):
                    self.losses += 1
                    if self.mode is Mode.HOLD_REQUESTS:
                        select.select([self._stopped], [], [])
                    return
                sink.sendall(data)

    def _loses(self, data: bytes, *, to_server: bool) -> bool:
        if self.mode is Mode.LOSE_COMMITS and COMMITTED not in data:
            return False
        return self.mode in (TO_SERVER if to_server else TO_CLIENT)
