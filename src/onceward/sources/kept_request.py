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


def pack(request: Request, *, keep_authorization: bool) -> bytes:
    """What is kept of a request beside its body, to verify it again."""
    dropped = _NEVER_KEPT if keep_authorization else _NEVER_KEPT | {b"authorization"}
    headers = [pair for pair in request.headers.pairs if pair[0] not in dropped]
    return msgspec.msgpack.encode(_KeptRequest(request.method, request.url, headers))


def unpack(packed: bytes, body: bytes) -> Request:
    """A request as it came."""
    kept = msgspec.msgpack.decode(packed, type=_KeptRequest)
    return Request(Headers(kept.headers), body, method=kept.method, url=kept.url)
