"""An honest sender in a process of its own: it posts at a steady rate and measures the latency."""

import json
import socket
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event as StopEvent
from types import TracebackType
from typing import NamedTuple, Self

TIMEOUT_SECONDS = 15.0
ACCEPTED = 202


class Sample(NamedTuple):
    """One request: when it was due, how long its response took, and the status (0: none)."""

    due: float
    seconds: float
    status: int


@dataclass(frozen=True)
class Latency:
    """The latencies of a period."""

    count: int
    median_ms: float
    p99_ms: float
    failures: int

    @classmethod
    def of(cls, samples: list[Sample]) -> "Latency":
        """Summarise samples; a request without a response counts with its timeout."""
        times = sorted(sample.seconds * 1000 for sample in samples) or [0.0]
        failures = sum(sample.status != ACCEPTED for sample in samples)
        p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
        return cls(len(samples), round(times[len(times) // 2], 1), round(p99, 1), failures)


class HonestSender:
    """Posts events over one kept-alive connection until the context is left."""

    def __init__(self, port: int, per_second: float) -> None:
        context = get_context("forkserver")
        self._stop = context.Event()
        self._results, child = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_send_until, args=(port, per_second, self._stop, child), daemon=True
        )
        self._process.start()
        child.close()
        self._samples: list[Sample] = []

    def __enter__(self) -> Self:
        assert self._results.poll(TIMEOUT_SECONDS), "the honest sender did not start"
        self._results.recv()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """Stop sending and collect the samples."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._results.poll(2 * TIMEOUT_SECONDS):
            self._samples = self._results.recv()
        self._process.join(TIMEOUT_SECONDS)
        if self._process.is_alive():
            self._process.kill()

    def between(self, start: float, end: float) -> Latency:
        """Return the latency of the requests that were due in a period, after `finish`."""
        return Latency.of([sample for sample in self._samples if start <= sample.due < end])


def _send_until(port: int, per_second: float, stop: StopEvent, results: Pipe) -> None:
    samples: list[Sample] = []
    connection: socket.socket | None = None
    due = time.monotonic()
    number = status = 0
    results.send("started")
    while not stop.is_set():
        due += 1 / per_second
        while due < time.monotonic() - 1 / per_second:
            # A sender does not wait for others: the requests due meanwhile were late too.
            samples.append(Sample(due, time.monotonic() - due, status))
            due += 1 / per_second
        time.sleep(max(0.0, due - time.monotonic()))  # a steady rate
        number += 1
        status = 0
        try:
            connection = connection or _connect(port)
            status = _post(connection, number)
        except OSError:
            if connection is not None:
                connection.close()
            connection = None
        samples.append(Sample(due, time.monotonic() - due, status))
    results.send(samples)


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _post(connection: socket.socket, number: int) -> int:
    """Post one event and return the status of the response."""
    event_id = f"honest-{connection.getsockname()[1]}-{number}"
    body = json.dumps({"event_id": event_id, "event_type": "honest", "payload": number}).encode()
    connection.sendall(ingest_request(body))
    received = b""
    while b"\r\n\r\n" not in received:
        received += _receive(connection)
    head, _, rest = received.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
    while len(rest) < length:
        rest += _receive(connection)
    return int(head[9:12])


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionResetError
    return data


def ingest_request(body: bytes, *lines: bytes) -> bytes:
    """Return a request that records an event."""
    head = b"".join(line + b"\r\n" for line in lines)
    return (
        b"POST /events/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n%b\r\n%b" % (len(body), head, body)
    )
