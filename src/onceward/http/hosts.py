"""Checks of Host and Origin, on open endpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Final

from onceward.http.addresses import is_loopback
from onceward.http.errors import HttpError
from onceward.sources.request import Headers

_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]{1,5})?"
)

MAX_CACHED_HOSTS: Final = 64
"""Allowed Host headers that are remembered; a refused one is never remembered."""

# Sec-Fetch-Site: absent without a browser, `none` if the user opened the URL, or our own page.
_SAME_SITE: Final = (None, b"none", b"same-origin")

CheckHost = Callable[[bytes], None]


def host_check(allowed: Collection[str]) -> CheckHost:
    """Return a function that raises HttpError (403) for a host that is not allowed.

    It decides once for each text of an allowed host. A refused host is not remembered, so that
    other senders can neither fill the cache nor displace the hosts in it.
    """
    names = frozenset(host.lower() for host in allowed)

    @lru_cache(maxsize=MAX_CACHED_HOSTS)
    def check(host: bytes) -> None:
        name = _host_name(host.decode("latin-1").lower())
        if name not in names and not is_loopback(name):
            message = "This host name is not allowed. Add it to the setting allowed_hosts."
            raise HttpError(403, "foreign_host", message)

    return check


def check_host_and_origin(headers: Headers, check_host: CheckHost) -> None:
    """Reject requests from pages of other sites. Raises HttpError (403)."""
    host = headers.get(b"host") or b""
    check_host(host)
    origin = headers.get(b"origin")
    is_foreign = origin is not None and not _is_same_origin(origin, host)
    if is_foreign or headers.get(b"sec-fetch-site") not in _SAME_SITE:
        message = "Pages of other sites may not send requests. Send them from a server."
        raise HttpError(403, "foreign_origin", message)


def _host_name(host: str) -> str:
    """Return the name in a Host header without its port, or "" if the header is malformed."""
    match = _HOST.fullmatch(host)
    return (match["address"] or match["name"]) if match else ""


def _is_same_origin(origin: bytes, host: bytes) -> bool:
    return origin.lower() in (b"http://" + host.lower(), b"https://" + host.lower())
