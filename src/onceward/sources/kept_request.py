"""A rejected request in the form in which it is kept, so that it can be verified again."""

from __future__ import annotations

from typing import Final

import msgspec

from onceward.sources.request import Headers, Request

_NEVER_KEPT: Final = frozenset({b"cookie", b"proxy-authorization"})


class _KeptRequest(msgspec.Struct, array_like=True):
    """What is kept of a request beside its body."""

    method: str
    url: str
    headers: list[tuple[bytes, bytes]]


def pack(request: Request, *, is_secret_kept: bool) -> bytes:
    """What is kept of a request beside its body, to verify it again."""
    never = _NEVER_KEPT if is_secret_kept else _NEVER_KEPT | {b"authorization"}
    headers = [pair for pair in request.headers.pairs if pair[0] not in never]
    return msgspec.msgpack.encode(_KeptRequest(request.method, request.url, headers))


def unpack(kept: bytes, body: bytes) -> Request:
    """A request as it came."""
    found = msgspec.msgpack.decode(kept, type=_KeptRequest)
    return Request(Headers(found.headers), body, method=found.method, url=found.url)
