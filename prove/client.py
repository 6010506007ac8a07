"""The senders: raw keep-alive connections that send each request until it is answered for good."""

import asyncio
import contextlib
import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgspec
import uvloop

from prove.journal import Journal, Outcome, Requeue, outcome_of

Address = tuple[str, int]
Answer = tuple[int, bytes]

NO_ANSWER: Answer = (0, b"")
ANSWER_SECONDS = 5.0
RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 0.25
IDLE_SECONDS = 0.02
BURST_SECONDS = 0.5
REQUEUE_EVERY_SECONDS = 0.1
REQUEUE_BODY = b'{"actor":"ann","reason":"to see whether it works now"}'

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One connection with one request under way at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """Whoever waits is told that no answer came."""
        self.is_open = False
        self._reply(NO_ANSWER)

    def data_received(self, data: bytes) -> None:
        """Take what came; when the answer is whole, hand it over."""
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self._received, 0, head + 2)
        end = head + 4 + (int(length[1]) if length else 0)
        if len(self._received) >= end:
            answer = int(self._received[9:12]), bytes(self._received[head + 4 : end])
            self._received.clear()
            self._reply(answer)

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its answer; without one in time, the connection is cut."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        timer = loop.call_later(ANSWER_SECONDS, self.cut)
        try:
            self._transport.write(request)
            return await self._answer
        finally:
            timer.cancel()

    def cut(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _reply(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)


class Line:
    """A way to the receivers: to one of them at a time, and to the next when that fails."""

    def __init__(self, addresses: Callable[[], Sequence[Address]], place: int) -> None:
        self._addresses = addresses
        self._place = place
        self._address: Address | None = None
        self._connection: Connection | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        """One request and its answer, or NO_ANSWER."""
        addresses = self._addresses()
        address = addresses[self._place % len(addresses)]
        connection = await self._connected(address)
        if connection is None:
            return NO_ANSWER
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {address[0]}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return await connection.ask(head.encode() + body)

    def turn(self) -> None:
        """Go to the next receiver from now on."""
        self._place += 1

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.cut()

    async def _connected(self, address: Address) -> Connection | None:
        connection = self._connection
        if connection is not None and connection.is_open and address == self._address:
            return connection
        self.close()
        self._connection, self._address = None, address
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                _, self._connection = await asyncio.get_running_loop().create_connection(
                    Connection, *address
                )
        return self._connection


class Sender:
    """Many connections in a thread of their own, that send a mix for as long as they may.

    `limit` is the number of events to send so far and `rate` how many requests a second. Both may
    be changed at any time; so may `is_requeueing`.
    """

    def __init__(
        self,
        journal: Journal,
        addresses: Callable[[], Sequence[Address]],
        *,
        connections: int,
        seed: int,
    ) -> None:
        self.journal = journal
        self.limit = 0
        self.rate = 1.0
        self.is_paused = False
        self.is_requeueing = False
        self.open = 0
        """How many requests have no final answer yet."""
        self._addresses = addresses
        self._connections = connections
        self._sendings: Iterator[tuple[int, int]] = journal.mix.sendings()
        self._dice = random.Random(seed)  # noqa: S311 - the same each time
        self._due = 0.0
        self._is_over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="senders", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """End, with whatever is under way. Raises what went wrong in the thread."""
        self._is_over = True
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            uvloop.run(self._send_all())
        except BaseException as error:  # noqa: BLE001 - told by `stop`, in the other thread
            self._failure = error

    async def _send_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for place in range(self._connections):
                group.create_task(self._send_some(place))
            group.create_task(self._requeue())

    async def _send_some(self, place: int) -> None:
        line = Line(self._addresses, place)
        while (sending := await self._next()) is not None:
            self.open += 1
            await self._deliver(line, *sending)
            self.open -= 1
        line.close()

    async def _next(self) -> tuple[int, int] | None:
        """What to send next, when its time has come; None at the end."""
        while not self._is_over:
            now = time.monotonic()
            if not self.is_paused and self.journal.mix.sent < self.limit and self._due <= now:
                self._due = max(self._due, now - BURST_SECONDS) + 1 / self.rate
                return next(self._sendings)
            await asyncio.sleep(IDLE_SECONDS)
        return None

    async def _deliver(self, line: Line, number: int, variant: int) -> None:
        """Send until it is answered for good: to the same receiver again, and to the others."""
        body = self.journal.mix.body(number, variant)
        for attempt in itertools.count():
            start = time.time()
            answer = await line.ask("POST", "/events/ingest", body)
            outcome = self.journal.note(number, variant, answer, start, time.time())
            if outcome is not Outcome.UNKNOWN or self._is_over:
                return
            if attempt % 2:
                line.turn()
            await asyncio.sleep(min(RETRY_SECONDS * 2**attempt, LONGEST_RETRY_SECONDS))

    async def _requeue(self) -> None:
        line = Line(self._addresses, 0)
        while not self._is_over:
            await asyncio.sleep(REQUEUE_EVERY_SECONDS)
            if self.is_requeueing:
                await self._requeue_one(line)
                line.turn()
        line.close()

    async def _requeue_one(self, line: Line) -> None:
        status, body = await line.ask("GET", "/admin/jobs?status=failed&limit=50")
        if status != 200:
            return
        failed = [int(item["id"]) for item in msgspec.json.decode(body)["items"]]
        if failed:
            job = self._dice.choice(failed)
            status, body = await line.ask("POST", f"/admin/jobs/{job}/requeue", REQUEUE_BODY)
            entry = Requeue(job, outcome_of(status, body), status, time.time())
            self.journal.requeues.append(entry)
