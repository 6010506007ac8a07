"""Answers: in one shape, made once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from onceward.errors import RequestRefused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

NO_CONTENT: Final = 204
_ALWAYS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_encode = msgspec.json.Encoder().encode


class Answer(NamedTuple):
    """A status, a body, JSON unless it says otherwise, and further headers."""

    status: int
    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    content_type: bytes = b"application/json"

    @property
    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as they go out."""
        if self.status == NO_CONTENT:
            return [*_ALWAYS, *self.headers]
        length = str(len(self.body)).encode()
        content = ((b"content-type", self.content_type), (b"content-length", length))
        return [*content, *_ALWAYS, *self.headers]

    async def send(self, send: Send) -> None:
        """Put it on the wire."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": self.all_headers,
            }
        )
        await send({"type": "http.response.body", "body": self.body})


def answer(status: int, content: object) -> Answer:
    """An answer with anything that msgspec can encode."""
    return Answer(status, _encode(content))


def refusal(refused: RequestRefused) -> Answer:
    """The answer to a request that is refused: a code for programs, a message for people."""
    headers = [(name.encode(), value.encode()) for name, value in refused.headers]
    return Answer(
        refused.status, _encode({"error": refused.code, "message": refused.message}), headers
    )
