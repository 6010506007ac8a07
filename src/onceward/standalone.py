"""``onceward.verify`` and ``onceward.sign``: one request, without an inbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from onceward.errors import RejectionCause, RequestRefused, SignatureRejected
from onceward.model.events import Identity
from onceward.runtime.clock import SystemClock
from onceward.sources.configure import resolve_preset, resolve_scheme
from onceward.sources.event_reader import make_event_reader
from onceward.sources.outgoing import OutgoingRequest, encode_header
from onceward.sources.presets import Preset
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Scheme
from onceward.sources.source import verify_request


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification.

    `time` is the signed time, if there is one. `events` has the identity of each event. If there is
    exactly one event, `id`, `type` and `reference` are its own; otherwise they are empty.
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
    """Verify a request and return the events it contains.

    `secret` is one secret or several; any of them may match. `headers` is a mapping, or pairs as in
    ASGI. `url` is the public URL, for senders that sign it. `now` is in seconds since 1970 and
    defaults to the current time.

    Raises SignatureRejected if the request does not verify, and ConfigurationError if the preset,
    the scheme or a secret is not valid.
    """
    resolved_preset = resolve_preset(preset)
    resolved_scheme = resolve_scheme(resolved_preset, scheme)
    secrets = [secret] if isinstance(secret, str | bytes) else secret
    keys = [key for text in secrets for key in resolved_scheme.keys(text)]
    request = Request(_parse_headers(headers), body, method=method, url=url)
    try:
        time = verify_request(resolved_preset, resolved_scheme, keys, request, _now(now))
    except SignatureRejected:
        raise
    except RequestRefused as refused:
        raise SignatureRejected(refused.message, RejectionCause.MISSING) from None
    events = _identities(resolved_preset, resolved_scheme, request)
    if len(events) != 1:
        return Verified(None, "", None, _datetime(time), events)
    (event,) = events
    return Verified(event.event_id, event.type, event.reference, _datetime(time), events)


def _datetime(time: float | None) -> datetime | None:
    try:
        return None if time is None else datetime.fromtimestamp(time, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return None


def _identities(preset: Preset, scheme: Scheme, request: Request) -> tuple[Identity, ...]:
    try:
        events = make_event_reader(preset, scheme).read(request)
    except RequestRefused:
        return ()
    return tuple(event.identity for event in events)


def _parse_headers(headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]]) -> Headers:
    if isinstance(headers, Mapping):
        return Headers(
            (encode_header(name.lower()), encode_header(value)) for name, value in headers.items()
        )
    return Headers((name.lower(), value) for name, value in headers)


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed request, ready to send."""

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
    """Sign a request as the sender would, so that `onceward.verify` accepts it.

    `secret` is the shared secret or the sender's private key. Send the returned request: some
    senders sign in the body or the URL. Raises ConfigurationError.
    """
    outgoing = OutgoingRequest(headers or {}, body, url=url, method=method)
    resolve_scheme(resolve_preset(preset), scheme).sign(secret, outgoing, _now(now))
    return Signed(outgoing.method, outgoing.url, outgoing.headers, outgoing.body)


def _now(now: float | None) -> float:
    return SystemClock().now() if now is None else now
