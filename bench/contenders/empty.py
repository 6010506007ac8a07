"""The limit: the same server and a raw ASGI endpoint that reads the body and keeps nothing."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from bench.contenders.interface import Place

Message = MutableMapping[str, Any]

_START: Message = {
    "type": "http.response.start",
    "status": 202,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"17")],
}
_BODY: Message = {"type": "http.response.body", "body": b'{"accepted":true}'}


async def app(
    _: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Read it all, answer 202."""
    while (await receive()).get("more_body"):
        pass
    await send(_START)
    await send(_BODY)


class Program:
    """Receives, and does nothing else."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def prepare(self) -> None:
        """It has no tables."""

    def serve(self) -> None:
        """Answer until killed."""
        run(app, self._place.port, lifespan="off")

    def received(self) -> set[str]:
        """Nothing is kept."""
        return set()


def run(application: Any, port: int, **options: Any) -> None:
    """Run uvicorn as in production: uvloop, httptools, no line for each request."""
    uvicorn.run(
        application,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        backlog=4096,
        **options,
    )
