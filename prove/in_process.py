"""Connections of the server without sockets: reads are chosen, writes are collected.

`connection_factory` is the only place that knows how the server builds a connection.
"""

import asyncio
import re
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from uvicorn.server import ServerState

from onceward.http.responses import Receive, Respond, Response, Scope, Send
from onceward.http.server.server import Server
from onceward.settings import Settings

LABEL = b"x-message"
QUIET_TICKS = 4
MAX_TICKS = 20_000
MAX_DELAY_TICKS = 3
SLOW_ENOUGH_SECONDS = 3600.0
"""No timer may fire: a stream ends when nothing happens any more."""

Header = tuple[bytes, bytes]
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LABEL_LINE = re.compile(rb"\r\n%b: *(\w+)" % LABEL, re.IGNORECASE)


class Message(NamedTuple):
    """A request that an application received completely."""

    method: bytes
    target: bytes
    body: bytes
    headers: tuple[Header, ...] = ()

    @property
    def label(self) -> bytes:
        """Return the text that the response to this message carries."""
        return b"%08x" % zlib.crc32(b"\0".join(self[:3]))

    @property
    def delay(self) -> int:
        """Return how many ticks the application takes to respond."""
        return zlib.crc32(self.body) % (MAX_DELAY_TICKS + 1)


class Run(NamedTuple):
    """One way to play a stream: its reads, and whether messages are handled directly."""

    reads: Sequence[bytes]
    is_direct: bool


@dataclass
class Outcome:
    """What came of a stream on one connection."""

    messages: list[Message] = field(default_factory=list)
    responses: list[bytes] = field(default_factory=list)
    """The labels of the responses to messages, in the order they were sent."""
    errors: list[int] = field(default_factory=list)
    """The statuses of the other responses."""
    is_closed: bool = False
    """Whether the server closed the connection before the sender did."""
    is_stalled: bool = False
    """Whether the server stopped reading and neither closed nor continued."""
    unparsed: bytes = b""


class Activity:
    """A count of everything that happens, which stands still when all is done."""

    def __init__(self) -> None:
        self.count = 0


class RecordingApp:
    """An application that records every message and responds after a few ticks."""

    def __init__(self, activity: Activity, *, is_direct: bool) -> None:
        self.messages: dict[int, list[Message]] = {}
        self._activity = activity
        self._is_direct = is_direct

    def handle_directly(self, scope: Scope, body: bytes, respond: Respond) -> None:
        """Record a complete request, and respond to it."""
        message = self._record(scope, body)
        self._respond_after(message.delay, respond, _response(message))

    def start_directly(
        self,
        scope: Scope,
        headers: object,  # noqa: ARG002 - the application's protocol
        respond: Respond,
    ) -> "DirectExchange | None":
        """Record a request that arrives in parts, once it is complete."""
        return DirectExchange(self, scope, respond) if self._is_direct else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Record a request once its body is complete."""
        body = b""
        more = True
        while more:
            part = await receive()
            self._activity.count += 1
            if part["type"] != "http.request":
                return
            body += part.get("body", b"")
            more = part.get("more_body", False)
        message = self._record(scope, body)
        for _ in range(message.delay):
            await asyncio.sleep(0)
        await _response(message).send(send)

    def _respond_after(self, ticks: int, respond: Respond, response: Response) -> None:
        if ticks == 0:
            respond(response)
        else:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._respond_after, ticks - 1, respond, response)

    def _record(self, scope: Scope, body: bytes) -> Message:
        self._activity.count += 1
        raw_path = scope.get("raw_path") or scope["path"].encode("latin-1")
        query = scope.get("query_string", b"")
        target = raw_path + (b"?" + query if query else b"")
        headers = tuple((bytes(name), bytes(value)) for name, value in scope["headers"])
        message = Message(scope["method"].encode("latin-1"), target, bytes(body), headers)
        self.messages.setdefault(scope["client"][1], []).append(message)
        return message


class DirectExchange:
    """A request that is handled in plain calls while it arrives."""

    is_full = False

    def __init__(self, app: RecordingApp, scope: Scope, respond: Respond) -> None:
        self._app = app
        self._scope = scope
        self._respond = respond
        self._body = b""

    def add(self, chunk: bytes) -> None:
        """Take a part of the body."""
        self._body += chunk

    def complete(self) -> None:
        """Take the end of the request."""
        self._app.handle_directly(self._scope, self._body, self._respond)

    def disconnect(self) -> None:
        """Take note that the request will not be complete."""


def _response(message: Message) -> Response:
    return Response(200, b"", headers=[(LABEL, message.label)])


ConnectionFactory = Callable[[], asyncio.Protocol]


def connection_factory(app: RecordingApp, settings: Settings) -> ConnectionFactory:
    """Return a function that builds connections as the server does."""
    config = Server(app, settings).config
    config.load()
    state = ServerState()
    build = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)

    def connect() -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        return build(config=config, server_state=state, app_state={}, _loop=loop)

    return connect


class MemoryTransport(asyncio.Transport):
    """A transport that delivers prepared reads, one a tick, and collects the writes."""

    def __init__(
        self, protocol: asyncio.Protocol, run: Run, number: int, activity: Activity
    ) -> None:
        super().__init__({"peername": ("127.0.0.1", number), "sockname": ("127.0.0.1", 80)})
        self.written = bytearray()
        self.is_closed_by_server = False
        self.is_reading_paused = False
        self._protocol = protocol
        self._reads = deque(run.reads)
        self._activity = activity
        self._is_closing = False
        self._is_ended = False
        self._is_eof_sent = False
        protocol.connection_made(self)

    # What the protocol calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Collect data, unless the connection is closing."""
        if not (self._is_closing or self._is_ended):
            self._activity.count += 1
            self.written += data

    def writelines(self, list_of_data: Any) -> None:
        """Collect data."""
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        """Close the server's side: nothing more is written, and what arrives is read."""
        if not (self._is_closing or self._is_ended):
            self._activity.count += 1
            self._is_ended = True
            self.is_closed_by_server = not self._is_eof_sent

    def can_write_eof(self) -> bool:
        """Return that half of the connection may close."""
        return True

    def close(self) -> None:
        """Close, and report the loss in the next tick as a socket does."""
        if self._is_closing:
            return
        self._activity.count += 1
        self._is_closing = True
        self.is_closed_by_server |= not self._is_eof_sent
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """Close at once."""
        self.close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or closing."""
        return self._is_closing

    def pause_reading(self) -> None:
        """Deliver no more reads."""
        self._activity.count += 1
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        """Deliver reads again."""
        self._activity.count += self.is_reading_paused
        self.is_reading_paused = False

    def is_reading(self) -> bool:
        """Return whether reads are delivered."""
        return not (self.is_reading_paused or self._is_closing)

    def get_write_buffer_size(self) -> int:
        """Return 0: everything is sent at once."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the buffer is always empty."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    # What the player calls.

    @property
    def has_unread(self) -> bool:
        """Return whether reads are left that the server could still take."""
        return bool(self._reads) and not self._is_closing

    def deliver(self) -> None:
        """Deliver the next read, if the server reads."""
        if self.has_unread and not self.is_reading_paused:
            self._activity.count += 1
            self._protocol.data_received(self._reads.popleft())

    def end(self) -> None:
        """Close the sender's side."""
        if not self._is_closing:
            self._is_eof_sent = True
            if not self._protocol.eof_received():
                self.close()

    def drop(self) -> None:
        """Close the connection if it is still open."""
        self.close()


class Player:
    """Plays streams on connections of the server, many of them side by side."""

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings(body_timeout_seconds=SLOW_ENOUGH_SECONDS)
        self._activity = Activity()
        self._apps = {
            is_direct: RecordingApp(self._activity, is_direct=is_direct)
            for is_direct in (True, False)
        }
        self._factories = {
            is_direct: connection_factory(app, settings) for is_direct, app in self._apps.items()
        }

    async def play(self, runs: Sequence[Run]) -> list[Outcome]:
        """Play all runs and return their outcomes, in order."""
        for app in self._apps.values():
            app.messages.clear()
        transports = [
            MemoryTransport(self._factories[run.is_direct](), run, number, self._activity)
            for number, run in enumerate(runs)
        ]
        await self._run_until_quiet(transports)
        stalled = [transport.has_unread for transport in transports]
        for transport in transports:
            transport.end()
        await self._run_until_quiet(transports)
        for transport in transports:
            transport.drop()
        await self._run_until_quiet(transports)
        outcomes = []
        for number, (run, transport) in enumerate(zip(runs, transports, strict=True)):
            outcome = parse_responses(bytes(transport.written))
            outcome.messages = self._apps[run.is_direct].messages.get(number, [])
            outcome.is_closed = transport.is_closed_by_server
            outcome.is_stalled = stalled[number]
            outcomes.append(outcome)
        return outcomes

    async def _run_until_quiet(self, transports: Sequence[MemoryTransport]) -> None:
        quiet, before = 0, -1
        for _ in range(MAX_TICKS):
            transports = [transport for transport in transports if transport.has_unread]
            for transport in transports:
                transport.deliver()
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._activity.count == before else 0
            if quiet > QUIET_TICKS + MAX_DELAY_TICKS:
                return
            before = self._activity.count
        raise AssertionError("the connections never became quiet")


def parse_responses(data: bytes) -> Outcome:
    """Split the bytes that a server wrote into responses to messages and others."""
    outcome = Outcome()
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end or not re.match(rb"HTTP/1\.1 \d{3} ", head):
            outcome.unparsed = data
            break
        status = int(head[9:12])
        length = _CONTENT_LENGTH.search(head)
        data = rest[int(length[1]) :] if length and status >= 200 else rest
        if status < 200:
            continue
        label = _LABEL_LINE.search(head)
        if label:
            outcome.responses.append(label[1])
        else:
            outcome.errors.append(status)
    return outcome
