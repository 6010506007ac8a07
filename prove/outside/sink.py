"""Another system: an HTTP server that logs every call before it decides whether to apply it."""

import base64
import hashlib
import hmac
import json
import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

KEYED = "keyed"
"""The kind of calls that the sink dedupes by their key."""
FORWARDED = "forwarded"
"""The kind of forwarded events, which the sink dedupes by their ``webhook-id``."""
DEDUPED = (f"/{KEYED}/", f"/{FORWARDED}/")
"""The sink applies all other calls again."""
SECRET = f"whsec_{base64.b64encode(b'the secret of the sink ..').decode()}"

REFUSED_SHARE = 0.1
LOST_SHARE = 0.2
MAX_DELAY_SECONDS = 0.15
"""A call is applied within this time, well before its deadline."""


class Call(NamedTuple):
    """A call as it arrived, before any deduplication."""

    path: str
    at: float


class Sink:
    """The server, its log, and what it applied."""

    def __init__(self, seed: int) -> None:
        self.calls: list[Call] = []
        self.receipts: dict[str, list[str]] = defaultdict(list)
        """The receipts of the calls that were applied, by path. More than one is a violation."""
        self.message_ids: dict[str, set[str]] = defaultdict(set)
        """The ids under which each forwarded event arrived. More than one is a violation."""
        self.forged: list[str] = []
        self.refused = 0
        self.lost = 0
        self._rng = random.Random(f"{seed}/sink")  # noqa: S311 - reproducible
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def call(self, path: str) -> tuple[HTTPStatus, str] | None:
        """Log a call, then refuse it, apply it, or apply it and lose the answer: return None."""
        with self._lock:
            self.calls.append(Call(path, time.time()))
            roll, delay = self._rng.random(), self._rng.uniform(0, MAX_DELAY_SECONDS)
        if roll < REFUSED_SHARE:
            self.refused += 1
            return HTTPStatus.SERVICE_UNAVAILABLE, ""
        time.sleep(delay)  # another system takes its time
        with self._lock:
            receipts = self.receipts[path]
            if not receipts or not path.startswith(DEDUPED):
                receipts.append(f"{path}#{len(receipts) + 1}")
            receipt = receipts[0]
        if roll > 1 - LOST_SHARE:
            self.lost += 1
            return None
        return HTTPStatus.OK, receipt

    def identify(self, headers: Message, body: bytes) -> str:
        """Verify a forwarded event, and return the path under which its calls are counted."""
        message_id, signature = headers["webhook-id"], headers["webhook-signature"]
        content = f"{message_id}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.digest(base64.b64decode(SECRET[6:]), content, hashlib.sha256)
        with self._lock:
            if signature != f"v1,{base64.b64encode(digest).decode()}":
                self.forged.append(message_id)
            self.message_ids[json.loads(body)["data"]["id"]].add(message_id)
        return f"/{FORWARDED}/{message_id}"

    def find(self, path: str) -> str | None:
        """Return the receipt of a call, if it was applied."""
        with self._lock:
            receipts = self.receipts.get(path)
            return receipts[0] if receipts else None


def _handler(sink: Sink) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = self.path
            if path == f"/{FORWARDED}":
                path = sink.identify(self.headers, body)
            if answer := sink.call(path):
                self._respond(*answer)
            else:
                self.close_connection = True

        def do_GET(self) -> None:
            receipt = sink.find(self.path)
            self._respond(HTTPStatus.OK if receipt else HTTPStatus.NOT_FOUND, receipt or "")

        def log_message(self, *_: object) -> None:
            """Write no log."""

        def _respond(self, status: HTTPStatus, text: str) -> None:
            with suppress(OSError):  # the caller is gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

    return Handler
