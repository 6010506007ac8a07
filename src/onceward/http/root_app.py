"""The application that ``onceward serve`` runs: receiving, the admin API and a welcome page."""

from __future__ import annotations

from typing import Final

from onceward.http.admin_app import ADMIN
from onceward.http.errors import HttpError
from onceward.http.openapi.document import FRONT_DOOR, OPENAPI
from onceward.http.receive_app import INGEST, IngestApp
from onceward.http.responses import Answer, ASGIApp, Receive, Scope, Send, answer, error_response
from onceward.operate.filters import LISTS

WELCOME: Final = {
    "message": "Onceward is running. Post events, then look at what happened.",
    "post": INGEST,
    "look": [f"{ADMIN}/{kind}" for kind in LISTS],
}


class RootApp:
    """Receiving and the admin API behind one address."""

    def __init__(self, ingest: IngestApp, admin: ASGIApp, *, dev: bool) -> None:
        self._ingest = ingest
        self._admin = admin
        self._dev = dev
        self.takes = ingest.takes
        self.take = ingest.take

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        if self._dev and path == FRONT_DOOR:
            await _welcome(scope["method"]).send(send)
            return
        is_admin = path.startswith(f"{ADMIN}/") or path == OPENAPI
        await (self._admin if is_admin else self._ingest)(scope, receive, send)


def _welcome(method: str) -> Answer:
    """Tell a visitor where to go. Nobody else gets a 2xx here: to a post it would mean recorded."""
    if method in ("GET", "HEAD"):
        return answer(200, WELCOME)
    message = "Only GET and HEAD can be used here."
    allow = (("allow", "GET, HEAD"),)
    return error_response(HttpError(405, "wrong_method", message, headers=allow))
