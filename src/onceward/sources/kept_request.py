"""Rejected requests in stored form, so that they can be verified again later."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_plus

import msgspec

from onceward.sources.request import Headers, Request

_NEVER_KEPT: Final = frozenset({b"cookie", b"proxy-authorization", b"x-hook-secret"})
_VERIFY_TOKENS: Final = frozenset({"verify_token", "hub.verify_token"})
"""Query parameters with the operator's token. They are needed for challenges only."""


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
    url = _without_verify_tokens(request.url)
    return msgspec.msgpack.encode(_KeptRequest(request.method, url, headers))


def _without_verify_tokens(url: str) -> str:
    base, mark, query = url.partition("?")
    fields = [
        field
        for field in query.split("&")
        if unquote_plus(field.partition("=")[0]) not in _VERIFY_TOKENS
    ]
    return f"{base}{mark}{'&'.join(fields)}"


def unpack(packed: bytes, body: bytes) -> Request:
    """Decode a stored request."""
    kept = msgspec.msgpack.decode(packed, type=_KeptRequest)
    return Request(Headers(kept.headers), body, method=kept.method, url=kept.url)
