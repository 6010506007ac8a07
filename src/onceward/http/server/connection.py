"""One HTTP/1.1 connection, which serves one request at a time.

A request passes through these steps, in the order of the code:

1. `data_received` takes bytes. Those behind the request that is being served wait, and reading
   stops.
2. `_advance` parses them in small parts, and starts the oldest request.
3. The request is handled by an `Exchange`, which gets the parts of its body and its end.
4. The exchange responds. The next request starts in a later iteration of the loop.

A connection is `OPEN`, then possibly `LINGERING` after its last response, and finally `CLOSING`. A
request that is refused here is the last one of its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final, Protocol

from onceward.errors import RequestRefused
from onceward.http.bodies import slow_request
from onceward.http.errors import CLOSE, RETRY_AFTER, HttpError
from onceward.http.responses import Header, Response, Scope, error_response
from onceward.http.server.context import ServerContext
from onceward.http.server.exchange import AsgiExchange, Exchange
from onceward.http.server.request_parser import IncomingRequest, RequestParser

KEEP_ALIVE_SECONDS: Final = 75.0
LINGER_SECONDS: Final = 1.0
"""How long the rest of a refused request is discarded, so that its sender can read the refusal."""
LINGER_BYTES: Final = 1024 * 1024
PART_BYTES: Final = 4096
"""The most that is parsed ahead of a response that is owed."""
LARGE_READ_BYTES: Final = 60_000
"""After a larger read, other connections come first: the event loop would read on."""
CHUNKS_PER_TICK: Final = 1_000
"""Chunks that are parsed before other connections come first: chunks may be tiny."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Phase(Enum):
    OPEN = auto()
    LINGERING = auto()
    """Our side is closed; what still arrives is discarded."""
    CLOSING = auto()


class ServerState(Protocol):
    """The part of uvicorn's server state that connections use."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    default_headers: list[Header]
    total_requests: int


class Connection(asyncio.Protocol):
    """A connection. Its limits hold for every request, direct or not."""

    def __init__(
        self,
        *,
        context: ServerContext,
        server_state: ServerState,
        app_state: Mapping[str, Any] | None = None,
        **_: object,
    ) -> None:
        self._context = context
        self._state = server_state
        self._app_state = app_state or {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._address_scope: Mapping[str, Any] = {}
        self._is_admitted = False
        self._phase = _Phase.OPEN
        self._waiting_since = self._loop.time()
        # What has arrived.
        self._parser = RequestParser(context.settings)
        self._unparsed: bytes | memoryview = b""
        self._refusal: RequestRefused | None = None
        self._discarded_bytes = 0
        self._is_reading_paused = False
        self._yields_after_read = False
        # The request being served.
        self._request: IncomingRequest | None = None
        self._exchange: Exchange | None = None  # None once the request has its response
        self._is_completion_queued = False
        self._is_response_begun = False
        self._expects_continue = False
        # Responses, and the end.
        self._unsent: list[bytes] = []
        self._drained: asyncio.Event | None = None  # exists while the client does not read
        self._is_last = False
        self._has_eof = False

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # asyncio passes a Transport
        """Begin reading, unless too many connections are open."""
        self._transport = transport
        self._address_scope = {
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
        }
        self._state.connections.add(self)
        self._context.watch(self)
        self._is_admitted = self._context.admit(self._host)
        if not self._is_admitted:
            self._refuse_connection()

    def _refuse_connection(self) -> None:
        """Refuse the connection: with a response, unless too many get one already."""
        if self._context.limits.is_flooded:
            self.abort()
            return
        message = "Too many connections are open. Retry later."
        headers = (*CLOSE, *RETRY_AFTER)
        self._refuse(HttpError(503, "overloaded", message, headers=headers))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        """Let the request in progress know."""
        self._phase = _Phase.CLOSING
        self._state.connections.discard(self)
        self._context.unwatch(self)
        self._context.limits.leave(self._host, was_admitted=self._is_admitted)
        self._disconnect_exchange()
        self.resume_writing()

    def eof_received(self) -> bool:
        """Answer the requests that are complete, then close.

        The client may have closed only its own side.
        """
        self._flush()
        self._is_last = self._has_eof = True
        is_owed = self._has_more if self._request is None else self._request.is_complete
        return is_owed and self._phase is _Phase.OPEN

    def shutdown(self) -> None:
        """Close after the responses that are owed. uvicorn calls this when it stops."""
        self._is_last = True
        if self._request is None and not self._has_more:
            self._close()

    @property
    def _host(self) -> str | None:
        client = self._address_scope["client"]
        return client[0] if client else None

    @property
    def _has_more(self) -> bool:
        """Whether anything waits behind the request being served."""
        return bool(self._unparsed or self._parser.requests or self._refusal)

    # 1. Bytes. What cannot be parsed yet waits, and nothing more is read.

    def data_received(self, data: bytes) -> None:
        """Take bytes: parse them, hold them back, or discard them after the last response."""
        if self._phase is not _Phase.OPEN:
            self._discard(data)
            return
        if len(data) > LARGE_READ_BYTES:
            self._yields_after_read = True
            self._context.next_tick.add(self._resume_after_yield)
        if self._unparsed:
            data = bytes(self._unparsed) + data
        self._unparsed = data if len(data) <= PART_BYTES else memoryview(data)
        self._advance()

    def _resume_after_yield(self) -> None:
        self._yields_after_read = False
        self._advance()

    # 2. Parse and serve.

    def _advance(self) -> None:
        """Serve the oldest request as far as it has arrived, and parse what it still needs."""
        chunks = 0
        while self._serve() and self._unparsed:
            if chunks > CHUNKS_PER_TICK:
                self._context.next_tick.add(self._advance)
                break
            self._parse()
            chunks += 0 if self._request is None else len(self._request.chunks)
        self._pause_or_resume_reading()

    def _serve(self) -> bool:
        """Serve the oldest request; return whether more may be parsed."""
        if self._phase is not _Phase.OPEN or self._drained is not None:
            return False
        if self._request is None:
            if not self._parser.requests:
                self._end_if_due()
                return self._phase is _Phase.OPEN
            self._start(self._parser.requests.popleft())
        return self._request is not None and self._pass_on(self._request)

    def _end_if_due(self) -> None:
        """End the connection if nothing is left to serve, and nothing more will be."""
        if self._refusal is not None:
            self._send_refusal(self._refusal)
        elif self._is_last and not self._unparsed:
            self._close()

    def _parse(self) -> None:
        """Parse a part of what waits: the rest of a body, or little."""
        size = PART_BYTES
        if self._request is not None and len(self._unparsed) > PART_BYTES:
            size = max(size, self._request.missing_bytes)  # nothing else can be in there
        part, self._unparsed = self._unparsed[:size], self._unparsed[size:]
        was_between_requests = self._parser.is_between_requests
        try:
            self._parser.feed(part)
        except RequestRefused as refusal:
            self._refuse(refusal)
            return
        if was_between_requests and not self._parser.is_between_requests:
            self._waiting_since = self._loop.time()

    def _pause_or_resume_reading(self) -> None:
        """Read on only if nothing waits to be parsed, or if the rest is discarded."""
        must_wait = bool(self._unparsed or self._refusal) or self._yields_after_read
        pause = self._phase is _Phase.OPEN and must_wait
        if pause != self._is_reading_paused and self._phase is not _Phase.CLOSING:
            self._is_reading_paused = pause
            change = self._transport.pause_reading if pause else self._transport.resume_reading
            change()

    # 3. The request being served.

    def _start(self, request: IncomingRequest) -> None:
        """Begin handling a request, without a task if the application can."""
        self._request = request
        self._is_completion_queued = self._is_response_begun = False
        self._waiting_since = self._loop.time()
        self._state.total_requests += 1
        self._expects_continue = request.expects_continue
        scope: Scope = {
            "type": "http",
            "method": request.method.decode("ascii"),
            "headers": request.headers.pairs,
            **request.target,
            **self._address_scope,
        }
        exchange = self._start_directly(request, scope) or self._start_task(request, scope)
        if not self._is_response_begun:
            self._exchange = exchange

    def _start_directly(self, request: IncomingRequest, scope: Scope) -> Exchange | None:
        """Let the application handle the request without a task, if it can."""
        if request.method != b"POST":
            return None
        application = self._context.application
        exchange = application.start_directly(scope, request.headers, self.respond)
        if exchange is not None and self._expects_continue:
            self.allow_body()
        return exchange

    def _start_task(self, request: IncomingRequest, scope: Scope) -> Exchange:
        """Let a task handle the request."""
        scope.update(
            asgi={"version": "3.0", "spec_version": "2.3"},
            http_version=request.version,
            root_path="",
            state=dict(self._app_state),
        )
        exchange = AsgiExchange(self._context.application, scope, self)
        self._state.tasks.add(exchange.start(self._state.tasks.discard))
        return exchange

    def _pass_on(self, request: IncomingRequest) -> bool:
        """Pass on what has arrived of the request; return whether more may be parsed."""
        exchange, chunks = self._exchange, request.chunks
        if exchange is not None and chunks:
            # Joined: an object for each tiny chunk would take many times its bytes.
            exchange.add(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        chunks.clear()
        if not request.is_complete:
            if self._has_eof and not self._unparsed:
                self._close()  # the rest will never come
            return exchange is None or not exchange.is_full
        if exchange is None:
            self._end_request()
        elif not self._is_completion_queued:
            self._is_completion_queued = True
            self._context.next_tick.add(exchange.complete)
        return False

    def allow_body(self) -> None:
        """Tell a client that waits for permission to send the body; read on."""
        if self._expects_continue and not self._is_response_begun:
            self._expects_continue = False
            self._send(_CONTINUE)
        if self._unparsed:
            self._context.next_tick.add(self._advance)

    # 4. The response.

    @property
    def default_headers(self) -> list[Header]:
        """The headers that every response has."""
        return self._state.default_headers

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow the one being served."""
        request = self._request
        is_last = self._is_last and not self._has_more
        # Without permission, the client may leave the body out: its end is unknown.
        if request is None or is_last or self._expects_continue:
            return False
        # A proxy that reuses the connection would give a later refusal to another sender.
        return request.keeps_alive and request.has_certain_end

    def respond(self, response: Response) -> None:
        """Send the complete response to the request being served, if it still can be."""
        if self._request is None:
            return
        keep_alive = self.keeps_alive and not response.closes_connection
        self.write(response.to_bytes(self.default_headers, keep_alive=keep_alive))
        self.finish(keep_alive=keep_alive)

    def write(self, data: bytes) -> None:
        """Send a part of the response to the request being served."""
        self._is_response_begun = True
        self._send(data)

    def _send(self, data: bytes) -> None:
        """Send data in the next iteration.

        All connections flush together: the first client that wakes up would otherwise take the CPU
        while the remaining responses are built.
        """
        if not self._unsent:
            self._context.flush_queue.add(self._flush)
        self._unsent.append(data)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))

    def finish(self, *, keep_alive: bool) -> None:
        """End the response: start the next request, or close."""
        request, self._exchange = self._request, None
        if request is None or self._phase is not _Phase.OPEN:
            return
        self._waiting_since = self._loop.time()
        if not keep_alive:
            self._request = None
            self._close_after_response(request)
        elif request.is_complete:
            self._end_request()
        elif self._unparsed:
            self._context.next_tick.add(self._advance)  # discards the rest of the body

    def _end_request(self) -> None:
        """Start the next request, in a later iteration."""
        self._request = None
        if self._has_more or self._is_last:
            self._context.next_tick.add(self._advance)

    async def drain(self) -> None:
        """Wait until the client has read enough."""
        self._flush()
        if self._drained is not None:
            await self._drained.wait()

    def pause_writing(self) -> None:
        """Start no further request while the client does not read."""
        self._drained = asyncio.Event()
        self._waiting_since = self._loop.time()

    def resume_writing(self) -> None:
        """Serve further requests."""
        if self._drained is not None:
            self._drained.set()
            self._drained = None
            self._waiting_since = self._loop.time()
            self._context.next_tick.add(self._advance)

    # The end.

    def _refuse(self, refusal: RequestRefused) -> None:
        """Refuse what arrives, after the responses to the complete requests before it."""
        self._refusal = refusal
        self._unparsed = b""
        waiting = self._parser.requests
        if waiting and not waiting[-1].is_complete:
            waiting.pop()
        if self._request is not None and not self._request.is_complete:
            is_answered = self._exchange is None
            self._disconnect_exchange()
            if is_answered:
                self._close_lingering()
                return
            if self._is_response_begun:
                self.abort()  # a second response in the middle of the first would mislead
                return
        if self._request is None and not waiting:
            self._send_refusal(refusal)

    def _send_refusal(self, refusal: RequestRefused) -> None:
        response = error_response(refusal)
        self._send(response.to_bytes(self.default_headers, keep_alive=False))
        self._close_lingering()

    def _disconnect_exchange(self) -> None:
        exchange, self._exchange, self._request = self._exchange, None, None
        if exchange is not None:
            exchange.disconnect()

    def _close_after_response(self, request: IncomingRequest) -> None:
        """Close after the last response. What arrives behind it is discarded."""
        if request.is_complete and not self._unparsed:
            self._close()
        else:
            self._close_lingering()

    def _close_lingering(self) -> None:
        """Close our side, and discard what still arrives.

        Closing both would reset the connection, and the client might never see the response.
        """
        self._flush()
        self._phase = _Phase.LINGERING
        self._unparsed = b""
        self._waiting_since = self._loop.time()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._pause_or_resume_reading()

    def _discard(self, data: bytes) -> None:
        self._discarded_bytes += len(data)
        if self._discarded_bytes > LINGER_BYTES:
            self._close()

    def _close(self) -> None:
        self._flush()
        self._phase = _Phase.CLOSING
        self._waiting_since = self._loop.time()
        self._transport.close()

    def abort(self) -> None:
        """Break the connection: the response cannot be completed."""
        self._phase = _Phase.CLOSING
        self._transport.abort()

    def check_deadlines(self, now: float) -> None:
        """End what takes too long: a request, a client that does not read, or idleness."""
        waited = now - self._waiting_since
        is_slow = waited > self._context.settings.body_timeout_seconds
        if self._phase is _Phase.CLOSING or self._drained is not None:
            if is_slow:
                self.abort()  # the client reads nothing
        elif self._phase is _Phase.LINGERING:
            if waited > LINGER_SECONDS:
                self._close()
        elif self._request is not None and self._request.is_complete:
            pass  # the application owes the response
        elif self._request is not None or not self._parser.is_between_requests:
            if is_slow:
                self._refuse(slow_request(self._context.settings))
        elif waited > KEEP_ALIVE_SECONDS:
            self._close()


def _address(name: Any) -> tuple[str, int] | None:
    """Return the host and port of a socket's name, or None if it has none."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
