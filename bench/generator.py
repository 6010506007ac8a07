"""Sends prepared requests over keep-alive connections and counts the answers.

One loop over epoll, in a process of its own: python -m bench.generator ORDER, where ORDER is JSON.
A request costs it a read, a write and a few dozen bytecodes, so that on two cores it takes little
from what it measures; `docs/benchmarks.md` has it beside wrk.
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
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.deliveries import LOADS

HTTP_OK: Final = b"HTTP/1.1 2"
READ_BYTES: Final = 65_536
POLL_SECONDS: Final = 0.1
LAST_ANSWERS_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Order:
    """What is to be sent."""

    port: int
    file: str
    request_bytes: int
    load: str = "unique"
    connections: int = 64
    seconds: float = 4.0
    rate: float | None = None
    skip: int = 0
    count: int | None = None
    journal: str | None = None


@dataclass
class Report:
    """What was answered: within the time, and in all."""

    seconds: float = 0.0
    answered: int = 0
    acknowledged: int = 0
    is_cut_off: bool = False
    statuses: dict[str, int] = field(default_factory=dict)
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Requests answered with 2xx in a second."""
        return self.answered / self.seconds if self.seconds else 0.0

    @property
    def own_cost_us(self) -> float:
        """What a request costs the generator itself, in microseconds of a core."""
        return self.cpu_seconds / self.acknowledged * 1_000_000 if self.acknowledged else 0.0

    @property
    def refused(self) -> int:
        """Answers that were not 2xx."""
        return sum(count for status, count in self.statuses.items() if status[0] != "2")


class Connection:
    """One request at a time."""

    __slots__ = ("buffer", "number", "sent_at", "socket")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(0)  # never waits: epoll does
        self.buffer = b""
        self.number = 0
        self.sent_at = 0.0


class Generator:
    """Carries out one order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        with Path(order.file).open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        step = order.request_bytes
        self._requests = [content[at : at + step] for at in range(0, len(content), step)]
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._whole_bytes = -1
        self._statuses: Counter[bytes] = Counter()
        self._latencies = array("d")
        self._numbers = array("q")  # of the requests that were answered with 2xx
        self._sent_at = array("d")  # and when they were sent, on the system's clock

    def run(self) -> Report:
        """Connect, send for as long as was ordered, and wait for the last answers."""
        for _ in range(self._order.connections):
            connection = Connection(self._order.port)
            self._connections[connection.socket.fileno()] = connection
            self._epoll.register(connection.socket, select.EPOLLIN)
        gc.collect()
        gc.freeze()
        gc.disable()
        report = Report()
        cpu = time.process_time()
        try:
            if self._order.rate is None:
                self._send_at_will(report)
            else:
                self._send_at_rate(report, self._order.rate)
        except (ConnectionError, EOFError):
            report.is_cut_off = True
        report.cpu_seconds = time.process_time() - cpu
        report.acknowledged = len(self._numbers)
        report.statuses = {status.decode(): n for status, n in self._statuses.items()}
        self._summarise(report)
        return report

    def _upcoming(self) -> Iterator[int]:
        count = self._order.count or len(self._requests) - self._order.skip
        return (self._order.skip + number for number in LOADS[self._order.load](count))

    def _send_at_will(self, report: Report) -> None:
        """As soon as a connection has its answer, it gets the next request."""
        upcoming = self._upcoming()
        busy = 0
        began = time.perf_counter()
        ends = began + self._order.seconds
        for connection in self._connections.values():
            busy += self._send_next(connection, upcoming)
        counted: int | None = None
        while busy:
            for handle, _ in self._epoll.poll(POLL_SECONDS):
                connection = self._connections[handle]
                if not self._take(connection):
                    continue
                if time.perf_counter() < ends:
                    busy += self._send_next(connection, upcoming) - 1
                else:
                    busy -= 1
            if counted is None and time.perf_counter() >= ends:
                counted = len(self._numbers)
                report.seconds = time.perf_counter() - began
            if time.perf_counter() > ends + LAST_ANSWERS_SECONDS:
                break
            report.answered = counted if counted is not None else len(self._numbers)
        report.seconds = report.seconds or time.perf_counter() - began

    def _send_next(self, connection: Connection, upcoming: Iterator[int]) -> int:
        """Send the next request, if there is one; answers how many were sent."""
        number = next(upcoming, None)
        if number is None:
            return 0
        self._send(connection, number)
        return 1

    def _send(self, connection: Connection, number: int) -> None:
        connection.number = number
        connection.sent_at = time.perf_counter()
        sent = connection.socket.send(self._requests[number])
        assert sent == self._order.request_bytes, "a request fits into the socket's buffer"

    def _take(self, connection: Connection) -> bool:
        """Read what came; True when the answer is whole."""
        chunk = connection.socket.recv(READ_BYTES)
        if len(chunk) != self._whole_bytes or connection.buffer:
            if not chunk:
                raise EOFError
            chunk = connection.buffer + chunk
            if len(chunk) != _answer_bytes(chunk):
                connection.buffer = chunk
                return False
            connection.buffer = b""
            self._whole_bytes = len(chunk)
        self._latencies.append(time.perf_counter() - connection.sent_at)
        self._statuses[chunk[9:12]] += 1
        if chunk.startswith(HTTP_OK):
            self._numbers.append(connection.number)
            self._sent_at.append(connection.sent_at)
        return True

    def _send_at_rate(self, report: Report, rate: float) -> None:
        """Send at a steady pace, whatever the answers do; what finds no free connection waits."""
        upcoming = self._upcoming()
        free = list(self._connections.values())
        began = time.perf_counter()
        ends = began + self._order.seconds
        planned = 0
        while (now := time.perf_counter()) < ends or len(free) < self._order.connections:
            if now > ends + LAST_ANSWERS_SECONDS:
                break
            while free and (due := began + planned / rate) <= now and due < ends:
                connection = free.pop()
                self._send_next(connection, upcoming)
                # Late by the sleep's coarseness is not the service's fault; a wait for it is.
                if not free and now - due > POLL_SECONDS:
                    connection.sent_at = due
                planned += 1
            pause = max(0.0, min(began + planned / rate, ends) - time.perf_counter())
            for handle, _ in self._epoll.poll(min(pause, POLL_SECONDS) if free else POLL_SECONDS):
                connection = self._connections[handle]
                if self._take(connection):
                    free.append(connection)
        report.answered = len(self._numbers)
        report.seconds = self._order.seconds

    def _summarise(self, report: Report) -> None:
        if self._latencies:
            report.p50_ms, report.p99_ms, report.max_ms = percentiles_ms(self._latencies)
        if self._order.journal:
            offset = time.time() - time.perf_counter()
            moments = [at + offset for at in self._sent_at]
            journal = {"numbers": self._numbers.tolist(), "sent_at": moments}
            Path(self._order.journal).write_text(json.dumps(journal))


def percentiles_ms(seconds: Iterable[float]) -> tuple[float, float, float]:
    """The median, the 99th percentile and the most, in milliseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return (
        ordered[last // 2] * 1_000,
        ordered[last * 99 // 100] * 1_000,
        ordered[last] * 1_000,
    )


def _answer_bytes(start: bytes) -> int:
    """How long the answer is that begins like this; -1 while its head is not whole."""
    head, end, _ = start.partition(b"\r\n\r\n")
    if not end:
        return -1
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(head) + len(end) + int(value)
    raise ValueError("an answer without content-length")


def main(order: str) -> None:
    """Carry out an order and print the report, as JSON."""
    report = Generator(Order(**json.loads(order))).run()
    sys.stdout.write(json.dumps(asdict(report)))
    sys.stdout.flush()
    os._exit(0)  # thousands of views need not be taken down


if __name__ == "__main__":
    main(sys.argv[1])
