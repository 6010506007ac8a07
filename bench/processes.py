"""The processes of a run: contenders and load generators."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from bench.contenders.interface import ContenderConfig
from bench.load_generator import LoadPlan, LoadReport

ROOT = Path(__file__).parents[1]
START_SECONDS = 60.0
POLL_SECONDS = 0.02
LOG_CHARACTERS = 4_000
KILOBYTES_PER_MB = 1_024

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Fields of /proc/<pid>/stat, counted after the name, which may contain spaces.
_GROUP_FIELD = 2
_CPU_FIELDS = slice(11, 15)
_CHILDREN_CPU_FIELDS = slice(13, 15)
# Linux numbers the clock of a process by its id; see clock_getcpuclockid(3).
_PROCESS_CLOCK = 2


class TrialFailed(Exception):
    """A process failed to do its part; the message ends with its log."""


@dataclass(frozen=True)
class Memory:
    """The resident memory of a process, and its peak."""

    now_mb: float
    peak_mb: float


class ContenderProcess:
    """A contender in one of its roles, killed at the end of the context."""

    def __init__(self, module: str, role: str, config: ContenderConfig, *rest: str) -> None:
        self._label = f"{module} {role}"
        self._config = config
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.contenders", module, role, config.to_json(), *rest],
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
        """The end of the process's standard error."""
        return self.whole_log[-LOG_CHARACTERS:]

    @property
    def whole_log(self) -> str:
        """The process's standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def wait_until_serving(self) -> None:
        """Wait until the process responds on its port. Raises TrialFailed."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            if _is_serving(self._config.port):
                return
            time.sleep(POLL_SECONDS)  # not every contender reports readiness
        raise TrialFailed(f"{self._label} does not respond:\n{self.log}")

    def check(self) -> None:
        """Raise TrialFailed if the process has exited."""
        if (code := self._process.poll()) is not None:
            raise TrialFailed(f"{self._label} exited with {code}:\n{self.log}")

    def finish(self) -> None:
        """Wait for a successful exit. Raises TrialFailed."""
        if code := self._process.wait():
            raise TrialFailed(f"{self._label} exited with {code}:\n{self.log}")

    def memory(self) -> Memory:
        """Return the memory of the process, without its children."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        kilobytes = {
            name: int(rest.split()[0])
            for name, _, rest in (line.partition(":") for line in status.splitlines())
            if name in {"VmRSS", "VmHWM"}
        }
        return Memory(kilobytes["VmRSS"] / KILOBYTES_PER_MB, kilobytes["VmHWM"] / KILOBYTES_PER_MB)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process and its children so far, user and system."""
        return group_cpu_seconds(self._process.pid)

    def own_cpu_seconds(self) -> float:
        """Return the CPU time of the process so far, without its children, to the nanosecond."""
        return _process_cpu_seconds(self._process.pid)

    def stop(self) -> None:
        """Ask the process to drain, and wait until it has exited."""
        self._process.terminate()
        self._process.wait(START_SECONDS)

    def kill(self) -> None:
        """Kill the process and its children with SIGKILL."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def group_cpu_seconds(group: int) -> float:
    """Return the CPU time of a process group so far, in steps of a clock tick.

    The time of a child is its own until its parent has waited for it, then its parent's.
    """
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended during the search
        if int(fields[_GROUP_FIELD]) == group:
            ticks += sum(map(int, fields[_CPU_FIELDS]))
    return ticks / TICKS_PER_SECOND


def server_cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time so far of a server's main process, its ended children and the others.

    Each process of PostgreSQL has a group of its own. The time of a living process is exact: in
    /proc, each of 64 backends would lose up to two ticks, together more than a second's work.
    """
    fields = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()
    ended = sum(map(int, fields[_CHILDREN_CPU_FIELDS])) / TICKS_PER_SECOND
    return ended + sum(map(_process_cpu_seconds, pids))


def _process_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far with its threads, or zero if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    except OSError:
        return 0.0  # its main process has the time


def run_role(module: str, role: str, config: ContenderConfig, *rest: str) -> None:
    """Run a role that ends by itself. Raises TrialFailed."""
    with ContenderProcess(module, role, config, *rest) as process:
        process.finish()


def received_ids(module: str, config: ContenderConfig) -> set[str]:
    """Return the ids of the events that a contender has stored."""
    with tempfile.NamedTemporaryFile() as file:
        run_role(module, "received-ids", config, file.name)
        return set(json.loads(Path(file.name).read_text()))


@contextmanager
def sending(plan: LoadPlan) -> Iterator[subprocess.Popen[bytes]]:
    """Run a load generator in the background."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load_generator", json.dumps(asdict(plan))],
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


def send(plan: LoadPlan) -> LoadReport:
    """Run a load generator and return its report."""
    with sending(plan) as process:
        return read_report(process)


def read_report(process: subprocess.Popen[bytes]) -> LoadReport:
    """Wait for a load generator and return its report. Raises TrialFailed."""
    out, _ = process.communicate()
    if process.returncode:
        raise TrialFailed(f"the load generator exited with {process.returncode}")
    return LoadReport(**json.loads(out))


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_serving(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
