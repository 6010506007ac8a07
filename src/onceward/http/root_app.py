"""The application that ``onceward serve`` runs: receiving, the admin API and an index."""

from __future__ import annotations

from typing import Final

from onceward.http.admin_app import ADMIN
from onceward.http.errors import HttpError
from onceward.http.paths import INDEX_PATH, OPENAPI
from onceward.http.receive_app import INGEST, ReceiveApp
from onceward.http.responses import (
    ASGIApp,
    Receive,
    Response,
    Scope,
    Send,
    error_response,
    json_response,
)
from onceward.operate.filters import LISTS

INDEX: Final = {
    "message": "Onceward is running. Post an event, then look at the lists.",
    "post": INGEST,
    "look": [f"{ADMIN}/{kind}" for kind in LISTS],
}


class RootApp:
    """Receiving and the admin API on one address."""

    def __init__(self, receiving: ReceiveApp, admin: ASGIApp, *, dev: bool) -> None:
        self._receiving = receiving
        self._admin = admin
        self._dev = dev
        self.start_directly = receiving.start_directly

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path: str = scope["path"]
        if self._dev and path == INDEX_PATH:
            await _index(scope["method"]).send(send)
            return
        if path == ADMIN:
            path = f"{ADMIN}/"
            scope = {**scope, "path": path}
        is_admin = path.startswith(f"{ADMIN}/") or path == OPENAPI
        await (self._admin if is_admin else self._receiving)(scope, receive, send)


def _index(method: str) -> Response:
    """Return the index. A POST gets no 2xx, which a sender would read as recorded."""
    if method in ("GET", "HEAD"):
        return json_response(200, INDEX)
    message = f"This path supports GET and HEAD. Post events to {INGEST}."
    allow = (("allow", "GET, HEAD"),)
    return error_response(HttpError(405, "wrong_method", message, headers=allow))
