"""The limit of uvicorn: the server and a raw ASGI app that reads the body and stores nothing."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from bench.contenders.interface import ContenderConfig
from bench.contenders.server import run_server

Message = MutableMapping[str, Any]

RESPONSE_BODY = b'{"accepted":true}'
_START: Message = {
    "type": "http.response.start",
    "status": 202,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(RESPONSE_BODY)),
    ],
}
_BODY: Message = {"type": "http.response.body", "body": RESPONSE_BODY}


async def app(
    _: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Read the whole body and respond with 202."""
    while (await receive()).get("more_body"):
        pass
    await send(_START)
    await send(_BODY)


class Program:
    """A receiver without a database."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config

    def serve(self) -> None:
        """Respond until killed."""
        run_server(app, self._config.port, lifespan="off")

    def received_ids(self) -> set[str]:
        """Return nothing: no event is stored."""
        return set()
