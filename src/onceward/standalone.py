"""Verify or sign one request without an inbox: ``onceward.verify`` and ``onceward.sign``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from onceward.errors import RejectionCause, RequestRefused, SignatureRejected
from onceward.model.events import Identity
from onceward.runtime.clock import SystemClock
from onceward.sources.configure import resolve_preset, resolve_scheme
from onceward.sources.outgoing import OutgoingRequest, encode_header
from onceward.sources.presets import Preset
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Scheme
from onceward.sources.source import identify_events


@dataclass(frozen=True, slots=True)
class Verified:
    """What a genuine request is about, as far as it says.

    `time` is the one that was signed. `events` has each event; `id`, `type` and `reference` are
    those of the only one.
    """

    id: str | None
    type: str
    reference: str | None
    time: datetime | None
    events: tuple[Identity, ...]


def verify(
    preset: str | Preset,
    *,
    secret: str | bytes | Sequence[str | bytes],
    headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]],
    body: bytes,
    url: str = "",
    method: str = "POST",
    now: float | None = None,
    scheme: str | Scheme | None = None,
) -> Verified:
    """Say what a request is about that was made with one of the secrets, as a source would.

    `headers` is a mapping, or the pairs as ASGI gives them; `url` is the public one, for senders
    that sign it; `now` is in seconds since 1970, and the clock's time where it is left out. Raises
    SignatureRejected, and ConfigurationError for a preset, a scheme or a secret that cannot be one.
    """
    sender = resolve_preset("", preset)
    checked_scheme = resolve_scheme(sender, scheme)
    secrets = [secret] if isinstance(secret, str | bytes) else secret
    keys = [key for text in secrets for key in checked_scheme.keys(text)]
    request = Request(_parse_headers(headers), body, method=method, url=url)
    try:
        time = checked_scheme.verify(keys, request, _now(now))
    except SignatureRejected:
        raise
    except RequestRefused as refused:
        raise SignatureRejected(refused.message, RejectionCause.MISSING) from None
    events = _identities(sender, request)
    if len(events) != 1:
        return Verified(None, "", None, _datetime(time), events)
    (event,) = events
    return Verified(event.event_id, event.type, event.reference, _datetime(time), events)


def _datetime(time: float | None) -> datetime | None:
    try:
        return None if time is None else datetime.fromtimestamp(time, UTC)
    except (ValueError, OverflowError, OSError):  # no calendar goes as far
        return None


def _identities(preset: Preset, request: Request) -> tuple[Identity, ...]:
    try:
        events = identify_events(preset, request)
    except RequestRefused:
        return ()
    return tuple(identity for identity, _ in events)


def _parse_headers(headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]]) -> Headers:
    if isinstance(headers, Mapping):
        return Headers(
            (encode_header(name.lower()), encode_header(value)) for name, value in headers.items()
        )
    return Headers((name.lower(), value) for name, value in headers)


@dataclass(frozen=True, slots=True)
class Signed:
    """A request as its sender would send it."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def sign(
    preset: str | Preset,
    *,
    secret: str | bytes,
    headers: Mapping[str, str] | None = None,
    body: bytes,
    url: str = "",
    method: str = "POST",
    now: float | None = None,
    scheme: str | Scheme | None = None,
) -> Signed:
    """Make a request that `onceward.verify` takes for genuine.

    The secret is the one that both sides have, or the sender's private key. Some senders put their
    proof into the body or the URL: send what comes back. Raises ConfigurationError.
    """
    outgoing = OutgoingRequest(headers or {}, body, url=url, method=method)
    resolve_scheme(resolve_preset("", preset), scheme).sign(secret, outgoing, _now(now))
    return Signed(outgoing.method, outgoing.url, outgoing.headers, outgoing.body)


def _now(now: float | None) -> float:
    return SystemClock().now() if now is None else now
