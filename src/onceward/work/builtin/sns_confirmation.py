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

_REGION: Final = r"[a-z]{2}(?:-[a-z]{1,12}){1,3}-[0-9]{1,2}"
_SNS_HOST: Final = re.compile(rf"sns\.{_REGION}\.amazonaws\.com(\.cn)?")
"""The region is checked too: sns.s3.amazonaws.com is a bucket, which anyone may own."""
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
    if not isinstance(url, str) or not _is_sns_url(url):
        raise PermanentError("SubscribeURL is not a URL of Amazon SNS; it was not fetched")
    status = await asyncio.to_thread(get, url)
    if not http.client.OK <= status < http.client.MULTIPLE_CHOICES:
        raise RuntimeError(f"Amazon returned {status} for the confirmation")


def _is_sns_url(url: str) -> bool:
    if not url.isascii() or not url.isprintable():  # urlsplit() drops tabs and line breaks
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and _SNS_HOST.fullmatch(parts.netloc) is not None
