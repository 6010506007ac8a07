"""Receive forwarded events without Onceward: verify the signature, and apply each id once.

Run: python examples/receiver.py 9000
"""

import base64
import hashlib
import hmac
import json
import os
import sqlite3
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

SECRET = os.environ.get("BILLING_SECRET", "whsec_YW4gZXhhbXBsZSwgbm90IGEgc2VjcmV0IQ==")
TOLERANCE_SECONDS = 300


def verify(message_id: str, timestamp: str, signatures: str, body: bytes) -> bool:
    """Check a signature of Standard Webhooks, and that it is not old."""
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    content = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(base64.b64decode(SECRET.removeprefix("whsec_")), content, hashlib.sha256)
    expected = f"v1,{base64.b64encode(digest).decode()}"
    return any(hmac.compare_digest(expected, each) for each in signatures.split())


class Receiver(BaseHTTPRequestHandler):
    """Applies each event once: its id and its effect are one transaction."""

    database = "receiver.db"

    def do_POST(self) -> None:
        """Respond 2xx only after the commit: any other status is sent again."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        message_id, timestamp, signatures = (self.headers[name] or "" for name in names)
        if not verify(message_id, timestamp, signatures, body):
            self._respond(HTTPStatus.UNAUTHORIZED)
            return
        with sqlite3.connect(self.database) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS seen (id text PRIMARY KEY)")
            connection.execute("CREATE TABLE IF NOT EXISTS orders (type text, payload text)")
            seen = connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", (message_id,))
            if seen.rowcount == 1:  # else the same event came before
                event = json.loads(body)
                row = (event["type"], json.dumps(event["data"]["payload"]))
                connection.execute("INSERT INTO orders VALUES (?, ?)", row)
        connection.close()
        self._respond(HTTPStatus.NO_CONTENT)

    def _respond(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.end_headers()


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
