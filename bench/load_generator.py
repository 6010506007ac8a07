"""The load generator: sends prepared requests over keep-alive connections, counts the responses.

`python -m bench.load_generator PLAN` runs one loop over epoll in a process of its own, where PLAN
is JSON. A request costs a read, a write and a few dozen bytecodes, so that the generator takes
little from the two cores it shares with the contender.
"""

import gc
import json
import mmap
import os
import select
import socket
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Final

from bench.deliveries import ORDERS, UNIQUE

HTTP_SUCCESS: Final = b"HTTP/1.1 2"
READ_BYTES: Final = 65_536
POLL_SECONDS: Final = 0.1
LAST_RESPONSES_SECONDS: Final = 10.0


@dataclass(frozen=True)
class LoadPlan:
    """Which requests to send, over how many connections, for how long and how fast."""

    port: int
    file: str
    request_bytes: int
    load: str = UNIQUE
    connections: int = 64
    seconds: float = 4.0
    rate: float | None = None
    """Requests per second, independent of the responses; None for a closed loop."""
    skip: int = 0
    count: int | None = None
    ports: Sequence[int] = ()
    """The ports of several receivers, which share the connections; else only `port`."""
    journal: str | None = None
    """File for the number and the time of each acknowledged request."""


@dataclass
class LoadReport:
    """The responses within the planned time, and in total."""

    seconds: float = 0.0
    acknowledged_in_time: int = 0
    acknowledged: int = 0
    is_cut_off: bool = False
    statuses: dict[str, int] = field(default_factory=dict)
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Acknowledged requests per second."""
        return self.acknowledged_in_time / self.seconds if self.seconds else 0.0

    @property
    def generator_us(self) -> float:
        """Microseconds of CPU that a request costs the generator."""
        return self.cpu_seconds / self.acknowledged * 1_000_000 if self.acknowledged else 0.0

    @property
    def rejected(self) -> int:
        """Number of responses other than 2xx."""
        return sum(count for status, count in self.statuses.items() if status[0] != "2")


class Connection:
    """A keep-alive connection with at most one request in flight."""

    __slots__ = ("buffer", "number", "sent_at", "socket")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(0)
        self.buffer = b""
        self.number = 0
        self.sent_at = 0.0


class LoadGenerator:
    """Carries out one plan."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        with Path(plan.file).open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        total = len(content) // plan.request_bytes
        last = total if plan.count is None else min(total, plan.skip + plan.count)
        self._requests = [
            content[number * plan.request_bytes : (number + 1) * plan.request_bytes]
            for number in range(plan.skip, last)
        ]
        self._upcoming = ORDERS[plan.load](len(self._requests))
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._response_bytes = -1
        self._statuses: Counter[bytes] = Counter()
        self._latencies = array("d")
        self._acknowledged = array("q")
        self._sent_at = array("d")

    def run(self) -> LoadReport:
        """Connect, send for the planned time, and wait for the last responses."""
        ports = self._plan.ports or (self._plan.port,)
        for _, port in zip(range(self._plan.connections), cycle(ports), strict=False):
            connection = Connection(port)
            self._connections[connection.socket.fileno()] = connection
            self._epoll.register(connection.socket, select.EPOLLIN)
        gc.collect()
        gc.freeze()
        gc.disable()
        report = LoadReport()
        cpu = time.process_time()
        try:
            if self._plan.rate is None:
                self._run_closed_loop(report)
            else:
                self._run_open_loop(report, self._plan.rate)
        except (ConnectionError, EOFError):
            report.is_cut_off = True
        report.cpu_seconds = time.process_time() - cpu
        report.acknowledged = len(self._acknowledged)
        report.statuses = {status.decode(): n for status, n in self._statuses.items()}
        if self._latencies:
            report.p50_ms, report.p99_ms, report.max_ms = percentiles_ms(self._latencies)
        if self._plan.journal:
            self._write_journal(Path(self._plan.journal))
        return report

    def _run_closed_loop(self, report: LoadReport) -> None:
        """Send the next request on a connection as soon as the last one is answered."""
        busy = 0
        began = time.perf_counter()
        deadline = began + self._plan.seconds
        for connection in self._connections.values():
            busy += self._send_next(connection)
        in_time: int | None = None
        while busy:
            for handle, _ in self._epoll.poll(POLL_SECONDS):
                connection = self._connections[handle]
                if not self._read_response(connection):
                    continue
                if time.perf_counter() < deadline:
                    busy += self._send_next(connection) - 1
                else:
                    busy -= 1
            if in_time is None and time.perf_counter() >= deadline:
                in_time = len(self._acknowledged)
                report.seconds = time.perf_counter() - began
            if time.perf_counter() > deadline + LAST_RESPONSES_SECONDS:
                break
            report.acknowledged_in_time = len(self._acknowledged) if in_time is None else in_time
        report.seconds = report.seconds or time.perf_counter() - began

    def _run_open_loop(self, report: LoadReport, rate: float) -> None:
        """Send at a steady rate; a request that finds no free connection waits for one.

        Such a wait counts as latency; the coarseness of a sleep does not.
        """
        free = deque(self._connections.values())
        began = freed_at = time.perf_counter()
        deadline = began + self._plan.seconds
        due, planned = began, 0
        while due < deadline or len(free) < self._plan.connections:
            now = time.perf_counter()
            if now > deadline + LAST_RESPONSES_SECONDS:
                break
            while free and due <= now and due < deadline:
                connection = free.popleft()  # in turn: a server ends one that stays idle
                self._send_next(connection)
                if due < freed_at:  # no connection was free when it fell due
                    connection.sent_at = due
                planned += 1
                due = began + planned / rate
            pause = max(0.0, min(due, deadline) - time.perf_counter())
            for handle, _ in self._epoll.poll(min(pause, POLL_SECONDS) if free else POLL_SECONDS):
                connection = self._connections[handle]
                if self._read_response(connection):
                    if not free:
                        freed_at = time.perf_counter()
                    free.append(connection)
        report.acknowledged_in_time = len(self._acknowledged)
        report.seconds = self._plan.seconds

    def _send_next(self, connection: Connection) -> int:
        """Send the next request and return 1, or return 0 after the last."""
        number = next(self._upcoming, None)
        if number is None:
            return 0
        connection.number = number
        connection.sent_at = time.perf_counter()
        sent = connection.socket.send(self._requests[number])
        assert sent == self._plan.request_bytes, "a request fits into the socket's buffer"
        return 1

    def _read_response(self, connection: Connection) -> bool:
        """Read from a connection and return whether the response is complete."""
        chunk = connection.socket.recv(READ_BYTES)
        if len(chunk) != self._response_bytes or connection.buffer:
            if not chunk:
                raise EOFError
            chunk = connection.buffer + chunk
            if len(chunk) != _response_bytes(chunk):
                connection.buffer = chunk
                return False
            connection.buffer = b""
            self._response_bytes = len(chunk)
        self._latencies.append(time.perf_counter() - connection.sent_at)
        self._statuses[chunk[9:12]] += 1
        if chunk.startswith(HTTP_SUCCESS):
            self._acknowledged.append(connection.number)
            self._sent_at.append(connection.sent_at)
        return True

    def _write_journal(self, file: Path) -> None:
        offset = time.time() - time.perf_counter()
        journal = {
            "numbers": [self._plan.skip + number for number in self._acknowledged],
            "sent_at": [at + offset for at in self._sent_at],
        }
        file.write_text(json.dumps(journal))


def percentiles_ms(seconds: Iterable[float]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the maximum in milliseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return (
        ordered[last // 2] * 1_000,
        ordered[last * 99 // 100] * 1_000,
        ordered[last] * 1_000,
    )


def _response_bytes(start: bytes) -> int:
    """Return the length of a response by its head, or -1 while the head is incomplete."""
    head, end, _ = start.partition(b"\r\n\r\n")
    if not end:
        return -1
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(head) + len(end) + int(value)
    raise ValueError("a response without content-length")


def main(plan: str) -> None:
    """Carry out a plan and print the report as JSON."""
    report = LoadGenerator(LoadPlan(**json.loads(plan))).run()
    sys.stdout.write(json.dumps(asdict(report)))
    sys.stdout.flush()
    os._exit(0)  # skip the teardown of thousands of views


if __name__ == "__main__":
    main(sys.argv[1])
