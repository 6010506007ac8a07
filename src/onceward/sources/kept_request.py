"""Rejected requests in stored form, so that they can be verified again later."""

from __future__ import annotations

from typing import Final

import msgspec

from onceward.sources.request import Headers, Request

_NEVER_KEPT: Final = frozenset({b"cookie", b"proxy-authorization"})


class _KeptRequest(msgspec.Struct, array_like=True):
    """A stored request without its body."""

    method: str
    url: str
    headers: list[tuple[bytes, bytes]]


def pack(request: Request, *, keep_authorization: bool) -> bytes:
    """Encode a request without its body.

    Credentials are dropped. `keep_authorization` keeps the Authorization header, for senders whose
    proof it carries.
    """
    dropped = _NEVER_KEPT if keep_authorization else _NEVER_KEPT | {b"authorization"}
    headers = [pair for pair in request.headers.pairs if pair[0] not in dropped]
    return msgspec.msgpack.encode(_KeptRequest(request.method, request.url, headers))


def unpack(packed: bytes, body: bytes) -> Request:
    """Decode a stored request."""
    kept = msgspec.msgpack.decode(packed, type=_KeptRequest)
    return Request(Headers(kept.headers), body, method=kept.method, url=kept.url)
