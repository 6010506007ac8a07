"""A service on a real socket, webhooks signed as providers sign them, and raw connections."""

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

STRIPE_SECRET = "whsec_stripe_current_secret"
STRIPE_OLD_SECRET = "whsec_stripe_previous_secret"
GITHUB_SECRET = "github-secret"
PARTNER_SECRET = "partner-secret"
SECRETS = (STRIPE_SECRET, STRIPE_OLD_SECRET, GITHUB_SECRET, PARTNER_SECRET)
VERIFY_TOKEN = "meta-verify-token"
JSON = {"content-type": "application/json"}
MAX_SINGLE_WRITE_BYTES = 10_000


class Push(msgspec.Struct):
    """The payload model of the push handler."""

    ref: str


def make_inbox(url: str, **settings: Any) -> Inbox:
    """Return an inbox with sources of each kind, and handlers that succeed or fail."""
    inbox = Inbox(url, **settings)
    inbox.source("stripe", secrets=[STRIPE_SECRET, STRIPE_OLD_SECRET])
    inbox.source("github", secrets=[GITHUB_SECRET])
    inbox.source("partner", preset="hmac", secrets=[PARTNER_SECRET])
    for name in ("gocardless", "xero"):
        inbox.source(name, secrets=[PARTNER_SECRET])
    inbox.source("trello", secrets=[PARTNER_SECRET], url="https://shop.example/webhooks/trello")
    inbox.source("meta", secrets=[PARTNER_SECRET], verify_token=VERIFY_TOKEN)
    inbox.source("lab", preset="hmac", unsigned=True)

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
    """A service with its worker and server in a thread, as ``serve`` runs them."""

    def __init__(
        self, inbox: Inbox, *, dev: bool, host: str = "127.0.0.1", single_write: bool = False
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
        transport = SingleWriteTransport(self) if single_write else Transport()
        self.http = httpx.Client(base_url=self.address, timeout=15.0, transport=transport)

    def close(self) -> None:
        """Drain the service and stop its thread."""
        self.http.close()
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def post(self, event_id: str, event_type: str = "order.paid", **more: Any) -> httpx.Response:
        """Post an event to ``/events/ingest``."""
        body = {"event_id": event_id, "event_type": event_type, "payload": {"order": 7}, **more}
        return self.http.post("/events/ingest", json=body)

    def send(self, webhook: "SignedWebhook", path: str | None = None) -> httpx.Response:
        """Post a signed webhook."""
        return self.http.post(
            path or f"/webhooks/{webhook.source}", content=webhook.body, headers=webhook.headers
        )

    def items(self, kind: str, **filters: str) -> list[Item]:
        """Return the first page of an admin list, newest first."""
        response = self.http.get(f"/admin/{kind}", params=filters)
        assert response.status_code == 200, response.text
        items: list[Item] = response.json()["items"]
        return items

    def settled_job(self, event_id: str) -> Item:
        """Wait until the only job of an event is settled, and return it."""

        def settled() -> list[Item]:
            jobs = self.items("jobs", event_id=event_id)
            return [job for job in jobs if job["status"] not in ("queued", "in_progress")]

        (job,) = eventually(settled, f"the job of {event_id} is settled")
        return job

    def rows(self) -> tuple[int, int, int]:
        """Return the number of events, payloads and redeliveries."""
        events, payloads, deliveries = (
            self.raw_db.count(f"onceward.{table}") for table in ("events", "payloads", "deliveries")
        )
        return events, payloads, deliveries

    def payload(self, event_id: str) -> tuple[bytes, dict[str, str]]:
        """Return the stored body and headers of an event."""
        rows: list[Row] = self.raw_db.rows(
            "SELECT e.event_id, p.body, p.headers FROM onceward.payloads p "
            "JOIN onceward.events e ON e.id = p.event"
        )
        ((body, headers),) = [
            (body, headers) for stored_id, body, headers in rows if stored_id == event_id
        ]
        return bytes(body), json.loads(bytes(headers))

    def connect(self) -> "RawConnection":
        """Open a raw connection to the service."""
        return RawConnection(self.host, self.port)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            self.service = self._inbox.service(dev=self._dev)
            await self.service.open()
            self.token = await self.service.create_first_token()
            server = Server(self.service.app(), self.service.settings)
            worker = self.service.worker() if self.service.settings.workers else None
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the start
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        await self._serve(server, worker)

    async def _serve(self, server: Server, worker: Worker | None) -> None:
        parts = [asyncio.create_task(server.serve(sockets=[self._listener]))]
        if worker is not None:
            parts.append(asyncio.create_task(worker.run()))
        await self._stop.wait()
        server.stop()
        if worker is not None:
            worker.stop()
        await asyncio.gather(*parts)
        await self.service.close()


@dataclass(frozen=True)
class SignedWebhook:
    """A webhook as its provider sends it."""

    source: str
    body: bytes
    headers: dict[str, str]


def stripe_webhook(
    event_id: str = "evt_1", *, secret: str = STRIPE_SECRET, now: int | None = None, **more: Any
) -> SignedWebhook:
    """Return a webhook signed by Stripe's own library."""
    event = {"id": event_id, "type": "invoice.paid", "data": {"object": {"id": "in_1"}}, **more}
    body = json.dumps(event)
    header = stripe.WebhookSignature.generate_signature_header(body, secret, now)
    return SignedWebhook("stripe", body.encode(), JSON | {"stripe-signature": header})


def github_webhook(
    delivery: str, body: bytes = b'{"ref":"refs/heads/main"}', *, event: str = "push"
) -> SignedWebhook:
    """Return a webhook signed as GitHub does, with its id and event in headers."""
    return SignedWebhook(
        "github",
        body,
        JSON
        | {
            "x-github-delivery": delivery,
            "x-github-event": event,
            "x-hub-signature-256": f"sha256={digest(GITHUB_SECRET, body)}",
        },
    )


def partner_webhook(event_id: str, body: bytes = b'{"type":"order.paid"}') -> SignedWebhook:
    """Return a webhook signed with a plain HMAC of its body."""
    signature = digest(PARTNER_SECRET, body)
    return SignedWebhook("partner", body, JSON | {"x-event-id": event_id, "x-signature": signature})


def digest(secret: str, content: bytes, algorithm: str = "sha256") -> str:
    """Return an HMAC in hex."""
    return hmac.new(secret.encode(), content, getattr(hashlib, algorithm)).hexdigest()


@dataclass(frozen=True)
class RawResponse:
    """A response read from a raw connection."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """A TCP connection on which a test can send any bytes."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=10)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> Self:
        """Send bytes."""
        self._socket.sendall(data)
        return self

    def read_response(self) -> RawResponse:
        """Read one response."""
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
        return RawResponse(int(status.split(" ")[1]), headers, body)

    def is_closed(self, seconds: float = 5.0) -> bool:
        """Return whether the server closes the connection within `seconds`."""
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def send_until_closed(self, chunk: bytes, pause_seconds: float = 0.0) -> int:
        """Send `chunk` repeatedly until the server closes; return the number of bytes sent."""
        sent = 0
        deadline = time.monotonic() + 15
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                self._socket.sendall(chunk)
                sent += len(chunk)
                time.sleep(pause_seconds)
            raise AssertionError("the connection stayed open")
        return sent

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def reset(self) -> None:
        """Reset the connection, as a killed process does."""
        linger = (1).to_bytes(4, "little") + bytes(4)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._socket.close()

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionResetError("the connection was closed before the response was complete")
        self._received += data


class SingleWriteTransport(Transport):
    """Sends a POST in one write, as most providers do. httpx writes head and body separately."""

    def __init__(self, inbox: RunningInbox) -> None:
        super().__init__()
        self._inbox = inbox

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and read the response."""
        body = request.read()
        if request.method != "POST" or len(body) > MAX_SINGLE_WRITE_BYTES:
            return super().handle_request(request)
        lines = [b"%b: %b\r\n" % header for header in request.headers.raw]
        head = b"POST %b HTTP/1.1\r\n%b\r\n" % (request.url.raw_path, b"".join(lines))
        with self._inbox.connect() as connection:
            response = connection.send(head + body).read_response()
        stream = httpx.ByteStream(response.body)
        return httpx.Response(response.status, headers=response.headers, stream=stream)


def request(
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    lines: bytes = b"",
) -> bytes:
    """Return a request as bytes. `lines` are raw header lines that no client would send."""
    every = {"host": "127.0.0.1", "content-length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in every.items())
    return f"{method} {path} HTTP/1.1\r\n{head}".encode("latin-1") + lines + b"\r\n" + body
