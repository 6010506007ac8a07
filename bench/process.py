"""The processes of a run: contenders and generators, started, asked, killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from bench.contenders.interface import Place
from bench.generator import Order, Report

ROOT = Path(__file__).parents[1]
START_SECONDS = 60.0
POLL_SECONDS = 0.02
MEGABYTE_KILOBYTES = 1_024


class Failed(Exception):
    """A process did not do what it was started for; the message ends with its log."""


@dataclass(frozen=True)
class Memory:
    """What a process has in memory, and the most it ever had."""

    now_mb: float
    peak_mb: float


class HandlerCall:
    """A contender in one of its roles, in a session of its own. It is dead when it is left."""

    def __init__(self, module: str, role: str, place: Place, *rest: str) -> None:
        self._what = f"{module} {role}"
        self._place = place
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.contenders", module, role, place.to_json(), *rest],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            cwd=ROOT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()

    @property
    def log(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4_000:]

    def wait_until_serving(self) -> None:
        """Wait until it answers on its port."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            if _answers(self._place.port):
                return
            time.sleep(POLL_SECONDS)  # contenders do not say when they serve
        raise Failed(f"{self._what} does not answer:\n{self.log}")

    def check(self) -> None:
        """Raise Failed if it has ended by itself."""
        if (code := self._process.poll()) is not None:
            raise Failed(f"{self._what} ended with {code}:\n{self.log}")

    def finish(self) -> None:
        """Wait for its end, which must be a good one."""
        if code := self._process.wait():
            raise Failed(f"{self._what} ended with {code}:\n{self.log}")

    def memory(self) -> Memory:
        """Of the process itself, from the kernel."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        kilobytes = {
            name: int(rest.split()[0])
            for name, _, rest in (line.partition(":") for line in status.splitlines())
            if name in {"VmRSS", "VmHWM"}
        }
        return Memory(
            kilobytes["VmRSS"] / MEGABYTE_KILOBYTES, kilobytes["VmHWM"] / MEGABYTE_KILOBYTES
        )

    def stop(self) -> None:
        """Ask it to end, and wait until it has: it gives back what it has not begun."""
        self._process.terminate()
        self._process.wait(START_SECONDS)

    def kill(self) -> None:
        """SIGKILL to it and to whatever it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def do(module: str, role: str, place: Place, *rest: str) -> None:
    """Let a contender do something that ends."""
    with HandlerCall(module, role, place, *rest) as process:
        process.finish()


def received(module: str, place: Place) -> set[str]:
    """The ids of the events that a contender holds."""
    with tempfile.NamedTemporaryFile() as file:
        do(module, "received", place, file.name)
        return set(json.loads(Path(file.name).read_text()))


@contextmanager
def sending(order: Order) -> Iterator[subprocess.Popen[bytes]]:
    """A generator at work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.generator", json.dumps(asdict(order))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def send(order: Order) -> Report:
    """Let a generator carry out an order, in a process of its own."""
    with sending(order) as process:
        return report(process)


def report(process: subprocess.Popen[bytes]) -> Report:
    """What a generator found, when it has ended."""
    out, _ = process.communicate()
    if process.returncode:
        raise Failed(f"the generator ended with {process.returncode}")
    return Report(**json.loads(out))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
