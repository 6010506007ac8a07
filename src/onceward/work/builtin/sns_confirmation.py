"""Subscription confirmation for Amazon SNS, which sends nothing until its URL is fetched."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from onceward.errors import PermanentError
from onceward.model.events import Event

_SNS_HOST: Final = re.compile(r"sns\.[a-z0-9-]{1,40}\.amazonaws\.com(\.cn)?")
_TIMEOUT_SECONDS: Final = 10.0

Fetch = Callable[[str], int]
"""Requests a URL and returns the status."""


def fetch(url: str) -> int:
    """Request a URL over HTTPS, without following redirects, and return the status."""
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", parts._replace(scheme="", netloc="").geturl())
        return connection.getresponse().status
    finally:
        connection.close()


async def confirm_subscription(event: Event[Any]) -> None:
    """Fetch the URL of a verified confirmation. Fetching it twice is harmless."""
    await confirm(event, fetch)


async def confirm(event: Event[Any], get: Fetch) -> None:
    """Fetch the URL of a confirmation with `get`. Raise PermanentError if it is not Amazon's."""
    url = event.payload.get("SubscribeURL") if isinstance(event.payload, dict) else None
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme != "https" or not _SNS_HOST.fullmatch(parts.netloc):
        raise PermanentError("SubscribeURL is not a URL of Amazon SNS; it was not fetched")
    status = await asyncio.to_thread(get, parts.geturl())
    if not http.client.OK <= status < http.client.MULTIPLE_CHOICES:
        raise RuntimeError(f"Amazon returned {status} for the confirmation")
