"""A TCP proxy in front of PostgreSQL that can lose or hold a request, or lose the answer to one."""

import contextlib
import select
import socket
import threading
from enum import Enum, auto
from typing import Self
from urllib.parse import urlsplit

CHUNK_BYTES = 65_536


class Mode(Enum):
    """What the proxy does with what it is given."""

    FORWARD = auto()
    LOSE_REQUESTS = auto()
    """The next request on a connection never arrives; the connection is cut."""
    LOSE_ANSWERS = auto()
    """The server does what it is asked; its next answer never arrives; the connection is cut."""
    LOSE_COMMITS = auto()
    """The server commits what a COMMIT asks it to; its answer never arrives; the same cut."""
    HOLD_REQUESTS = auto()
    """The next request on a connection never arrives; the connection stays, as if frozen."""


TO_SERVER = (Mode.LOSE_REQUESTS, Mode.HOLD_REQUESTS)
TO_CLIENT = (Mode.LOSE_ANSWERS, Mode.LOSE_COMMITS)
COMMITTED = b"COMMIT\0"


class Proxy:
    """Forwards connections to a database, for as long as it is told to."""

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
        self._stop, self._stopped = socket.socketpair()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.close()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        self._stopped.close()

    def lose(self, mode: Mode, after: bytes = b"") -> None:
        """From now on, lose requests or answers: any, or what follows a request with that text."""
        self._after = after
        self.mode = mode

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
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(self._target) as server,
        ):
            self._forward(client, server)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        """Forward until one side ends, or something is to be lost."""
        follows = is_marked = False
        while True:
            ready, _, _ = select.select([client, server, self._stopped], [], [])
            if self._stopped in ready:
                return
            for source, sink in ((client, server), (server, client)):
                if source not in ready:
                    continue
                data = source.recv(CHUNK_BYTES)
                if not data:
                    return
                if source is client:
                    is_marked = follows or not self._after
                    follows = bool(self._after) and self._after in data
                if is_marked and self._loses(data, to_server=source is client):
                    self.losses += 1
                    if self.mode is Mode.HOLD_REQUESTS:
                        select.select([self._stopped], [], [])
                    return
                sink.sendall(data)

    def _loses(self, data: bytes, *, to_server: bool) -> bool:
        if self.mode is Mode.LOSE_COMMITS and COMMITTED not in data:
            return False
        return self.mode in (TO_SERVER if to_server else TO_CLIENT)
