"""A service on a real socket, senders that sign as providers do, and one without manners."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

import httpx
import msgspec
import stripe

from onceward import Effects, Event, Inbox, PermanentError, Transaction
from onceward.http.server.server import Server, listen
from onceward.service import Service
from onceward.work.worker import Worker
from support.database import RawDatabase, Row
from support.processes import Item, Transport, eventually

STRIPE_SECRET = "whsec_the_new_one_of_stripe"
STRIPE_OLD_SECRET = "whsec_the_old_one_of_stripe"
GITHUB_SECRET = "the-secret-of-github"
PARTNER_SECRET = "the-secret-of-a-partner"
SECRETS = (STRIPE_SECRET, STRIPE_OLD_SECRET, GITHUB_SECRET, PARTNER_SECRET)
VERIFY_TOKEN = "a-token-that-meta-was-told"
JSON = {"content-type": "application/json"}
PIECE_BYTES = 10_000


class Push(msgspec.Struct):
    """What the handler of pushes needs."""

    ref: str


def make_inbox(url: str, **settings: Any) -> Inbox:
    """An inbox with a source of each kind, and handlers that succeed, fail, or want a model."""
    inbox = Inbox(url, **settings)
    inbox.source("stripe", secrets=[STRIPE_SECRET, STRIPE_OLD_SECRET])
    inbox.source("github", secrets=[GITHUB_SECRET])
    inbox.source("partner", secrets=[PARTNER_SECRET])
    for name in ("gocardless", "xero", "trello"):
        inbox.source(name, secrets=[PARTNER_SECRET])
    inbox.source("meta", secrets=[PARTNER_SECRET], verify_token=VERIFY_TOKEN)
    inbox.source("lab", unsigned=True)

    @inbox.on("push", source="github")
    async def follow(event: Event[Push]) -> None:
        assert event.payload.ref

    @inbox.on("order.paid", "invoice.paid")
    async def credit(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        assert event.payload is not None
        await effects.once(f"credit:{event.key}", reference=event.reference)

    @inbox.on("order.broken")
    async def refuse(event: Event[Any]) -> None:
        raise PermanentError("no such order")

    return inbox


class RunningInbox:
    """A service, its worker and its server in a thread: the same parts that ``serve`` runs."""

    def __init__(
        self, inbox: Inbox, *, dev: bool, host: str = "127.0.0.1", at_once: bool = False
    ) -> None:
        self._inbox = inbox
        self._dev = dev
        self._listener = listen(host, 0)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self.token: str | None = None
        self.service: Service
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        self._started.result(30)
        self.raw_db = RawDatabase(self.service.settings.database_url)
        transport = AtOnce(self) if at_once else Transport()
        self.http = httpx.Client(base_url=self.address, timeout=15.0, transport=transport)

    def close(self) -> None:
        """Drain and end."""
        self.http.close()
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def post(self, event_id: str, event_type: str = "order.paid", **more: Any) -> httpx.Response:
        """Send an event to ``/events/ingest``."""
        body = {"event_id": event_id, "event_type": event_type, "payload": {"order": 7}, **more}
        return self.http.post("/events/ingest", json=body)

    def signed(self, sent: "Signed", path: str | None = None) -> httpx.Response:
        """Send a signed webhook."""
        return self.http.post(
            path or f"/webhooks/{sent.source}", content=sent.body, headers=sent.headers
        )

    def items(self, kind: str, **filters: str) -> list[Item]:
        """A list of the admin API, the newest first."""
        response = self.http.get(f"/admin/{kind}", params=filters)
        assert response.status_code == 200, response.text
        found: list[Item] = response.json()["items"]
        return found

    def settled_job(self, event_id: str) -> Item:
        """The only job of an event, once it is over."""

        def look() -> list[Item]:
            jobs = self.items("jobs", event_id=event_id)
            return [job for job in jobs if job["status"] not in ("queued", "in_progress")]

        (job,) = eventually(look, f"the job of {event_id} is over")
        return job

    def rows(self) -> tuple[int, int, int]:
        """How many events, payloads and redeliveries there are."""
        events, payloads, deliveries = (
            self.raw_db.count(f"onceward.{table}") for table in ("events", "payloads", "deliveries")
        )
        return events, payloads, deliveries

    def payload(self, event_id: str) -> tuple[bytes, dict[str, str]]:
        """The body and the headers that were kept of an event."""
        rows: list[Row] = self.raw_db.rows(
            "SELECT e.event_id, p.body, p.headers FROM onceward.payloads p "
            "JOIN onceward.events e ON e.id = p.event"
        )
        ((body, headers),) = [(body, headers) for found, body, headers in rows if found == event_id]
        return bytes(body), json.loads(bytes(headers))

    def raw(self) -> "Raw":
        """A connection without manners."""
        return Raw(self.host, self.port)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            self.service = self._inbox.service(dev=self._dev)
            await self.service.open()
            self.token = await self.service.create_first_token()
            server = Server(self.service.app(), self.service.settings)
            worker = self.service.worker() if self.service.settings.workers else None
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        await self._serve(server, worker)

    async def _serve(self, server: Server, worker: Worker | None) -> None:
        parts = [asyncio.create_task(server.serve(sockets=[self._listener]))]
        if worker is not None:
            parts.append(asyncio.create_task(worker.run()))
        await self._stop.wait()
        server.should_exit = True
        if worker is not None:
            worker.stop()
        await asyncio.gather(*parts)
        await self.service.close()


@dataclass(frozen=True)
class Signed:
    """A webhook as its sender would send it."""

    source: str
    body: bytes
    headers: dict[str, str]


def stripe_webhook(
    event_id: str = "evt_1", *, secret: str = STRIPE_SECRET, now: int | None = None, **more: Any
) -> Signed:
    """A webhook that Stripe's own library signs."""
    event = {"id": event_id, "type": "invoice.paid", "data": {"object": {"id": "in_1"}}, **more}
    body = json.dumps(event)
    header = stripe.WebhookSignature.generate_signature_header(body, secret, now)
    return Signed("stripe", body.encode(), JSON | {"stripe-signature": header})


def github_webhook(
    delivery: str, body: bytes = b'{"ref":"refs/heads/main"}', *, event: str = "push"
) -> Signed:
    """A webhook as GitHub signs it: the id and the event are in headers."""
    return Signed(
        "github",
        body,
        JSON
        | {
            "x-github-delivery": delivery,
            "x-github-event": event,
            "x-hub-signature-256": f"sha256={digest(GITHUB_SECRET, body)}",
        },
    )


def partner_webhook(event_id: str, body: bytes = b'{"type":"order.paid"}') -> Signed:
    """A webhook with a plain HMAC over its body."""
    signature = digest(PARTNER_SECRET, body)
    return Signed("partner", body, JSON | {"x-event-id": event_id, "x-signature": signature})


def digest(secret: str, content: bytes, algorithm: str = "sha256") -> str:
    """A keyed digest in hex."""
    return hmac.new(secret.encode(), content, getattr(hashlib, algorithm)).hexdigest()


@dataclass(frozen=True)
class Answered:
    """An answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes


class Raw:
    """A TCP connection on which a test writes what it likes."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=10)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> Self:
        """Write."""
        self._socket.sendall(data)
        return self

    def answer(self) -> Answered:
        """Read one answer."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        length = int(headers.get("content-length", 0))
        while len(self._received) < length:
            self._receive()
        body, self._received = self._received[:length], self._received[length:]
        return Answered(int(status.split(" ")[1]), headers, body)

    def is_closed(self, seconds: float = 5.0) -> bool:
        """Whether the other side ends the connection within some time."""
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def send_until_closed(self, chunk: bytes, pause_seconds: float = 0.0) -> int:
        """Go on sending until the other side has had enough; answers with how much was sent."""
        sent = 0
        deadline = time.monotonic() + 15
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                self._socket.sendall(chunk)
                sent += len(chunk)
                time.sleep(pause_seconds)
            raise AssertionError("the connection was never closed")
        return sent

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def reset(self) -> None:
        """Leave at once, as a killed process does."""
        linger = (1).to_bytes(4, "little") + bytes(4)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._socket.close()

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionResetError("the connection was closed without a whole answer")
        self._received += data


class AtOnce(Transport):
    """Writes a post in one piece, as most senders do; httpx writes its head and its body apart."""

    def __init__(self, running: RunningInbox) -> None:
        super().__init__()
        self._running = running

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it, and read the answer."""
        body = request.read()
        if request.method != "POST" or len(body) > PIECE_BYTES:
            return super().handle_request(request)
        lines = [b"%b: %b\r\n" % header for header in request.headers.raw]
        head = b"POST %b HTTP/1.1\r\n%b\r\n" % (request.url.raw_path, b"".join(lines))
        with self._running.raw() as connection:
            answer = connection.send(head + body).answer()
        stream = httpx.ByteStream(answer.body)
        return httpx.Response(answer.status, headers=answer.headers, stream=stream)


def request(
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    lines: bytes = b"",
) -> bytes:
    """A request as bytes; `lines` are header lines that no client would send."""
    given = {"host": "127.0.0.1", "content-length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{head}".encode("latin-1") + lines + b"\r\n" + body
