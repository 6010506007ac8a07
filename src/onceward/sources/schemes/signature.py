"""Signatures over templated content, as most senders use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.request import Request
from onceward.sources.schemes.algorithms import Algorithm, Hmac
from onceward.sources.schemes.content import ContentTemplate
from onceward.sources.schemes.coverage import BodyCoverage, Coverage, UrlCoverage, selector_key
from onceward.sources.schemes.encodings import DECODERS, ENCODERS, Encoding
from onceward.sources.schemes.scheme import MAX_SIGNATURES, Key, require_match, signing
from onceward.sources.schemes.times import (
    TIME_STYLES,
    TimeFormat,
    TimeStyle,
    check_window,
    parse_timestamp,
)
from onceward.sources.selectors import HeaderSelector, Selector, parse_selectors, read_first

MAX_ITEMS: Final = 64
_LIST_PREFIX: Final = "list:"

Claims = tuple[bytes, float | None, Sequence[bytes]]
"""The timestamp as signed, its parsed time, and the signatures to try."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature scheme: where the signature is, its encoding, and the signed content.

    The header ``t=1700000000,v1=5f2a…`` is a list with ``separator=","``. Its signatures have the
    ``prefix="v1="``, and its time is at ``timestamp="list:t="``.
    """

    at: str
    content: str = "{body}"
    algorithm: Algorithm = field(default_factory=Hmac)
    encoding: Encoding = "hex"
    prefix: str = ""
    separator: str | None = None
    timestamp: str | None = None
    time_format: TimeFormat = "seconds"
    tolerance_seconds: int | None = None
    coverage: Coverage = field(init=False, repr=False, compare=False)
    _hashes_body: bool = field(init=False, repr=False, compare=False)
    _selectors: tuple[Selector, ...] = field(init=False, repr=False, compare=False)
    _template: ContentTemplate = field(init=False, repr=False, compare=False)
    _signs_body_only: bool = field(init=False, repr=False, compare=False)
    _prefix: bytes = field(init=False, repr=False, compare=False)
    _separator: bytes | None = field(init=False, repr=False, compare=False)
    _time_prefix: bytes | None = field(init=False, repr=False, compare=False)
    _time_selectors: tuple[Selector, ...] = field(init=False, repr=False, compare=False)
    _time_style: TimeStyle = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_choice("encoding", self.encoding, list(DECODERS))
        _check_choice("time_format", self.time_format, list(TIME_STYLES))
        if isinstance(self.algorithm, str | type):
            raise ConfigurationError(
                "algorithm must be an object such as Hmac('sha256') or ED25519"
            )
        if self.tolerance_seconds is not None and self.timestamp is None:
            raise ConfigurationError("tolerance_seconds requires a timestamp")
        if "{timestamp}" in self.content and self.timestamp is None:
            raise ConfigurationError("content includes {timestamp}, but timestamp is not set")
        time = self.timestamp or ""
        in_list = time.startswith(_LIST_PREFIX)
        if in_list and self.separator is None:
            raise ConfigurationError("timestamp is in a list, but separator is not set")
        style = TIME_STYLES[self.time_format]
        template = ContentTemplate(self.content, style)
        time_selectors = parse_selectors(time) if time and not in_list else ()
        coverage = _with_time(template.coverage, time_selectors)
        computed = {
            "coverage": coverage,
            "_hashes_body": coverage.body is BodyCoverage.BYTES or coverage.is_sender_only,
            "_selectors": parse_selectors(self.at),
            "_template": template,
            "_signs_body_only": self.content == "{body}",
            "_prefix": self.prefix.encode(),
            "_separator": None if self.separator is None else self.separator.encode(),
            "_time_prefix": time.removeprefix(_LIST_PREFIX).encode() if in_list else None,
            "_time_selectors": time_selectors,
            "_time_style": style,
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    @property
    def needs_url(self) -> bool:
        """Whether the public URL is signed."""
        return self._template.has_url

    def signed_query(self, registered: str, sent: str) -> str:
        """Return the registered query if the URL is signed, else the query as sent."""
        return sent if self.coverage.url is UrlCoverage.NOTHING else registered

    def event_content(self, event: Request) -> bytes:
        """Return the body, or the signed values but the time if only values are signed."""
        if self._hashes_body:
            return event.body
        try:
            return self._template.render_values(event)
        except SignatureRejected:  # the values belong to the request, not to each of its events
            return event.body

    @property
    def separator_safety(self) -> str:
        """Why the signed bytes cannot be cut into other values."""
        return self._template.separator_safety

    def with_tolerance(self, seconds: int | None) -> Self:
        """Return the scheme with another tolerance of the signed time; None checks none."""
        return replace(self, tolerance_seconds=seconds)

    @property
    def summary(self) -> str:
        """A one-line description."""
        content = self.content.replace("\n", "⏎")
        location = _location(self._selectors[0])
        return f"{self.algorithm.name} over `{content}`, {self.encoding}, in {location}"

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The possible causes of a rejection, in the order of the checks."""
        time = () if self.timestamp is None else (RejectionCause.TIMESTAMP,)
        return (RejectionCause.MISSING, *time, RejectionCause.MALFORMED, RejectionCause.MISMATCH)

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Parse a configured secret into keys. Raises ConfigurationError."""
        return self.algorithm.keys(secret)

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Write the time and the signature to a request. Raises ConfigurationError."""
        timestamp = self.put_time(outgoing, now)
        with signing():
            content = self._template.render(outgoing.request(), timestamp.encode())
        self.put_signature(outgoing, timestamp, self.algorithm.signer(secret)(content))

    def put_time(self, outgoing: OutgoingRequest, now: float) -> str:
        """Return the formatted time; write it too, unless it belongs to the signature's list."""
        timestamp = self._time_style.format(now) if self.timestamp else ""
        if self._time_selectors:
            outgoing.put(self._time_selectors[0], timestamp)
        return timestamp

    def put_signature(
        self, outgoing: OutgoingRequest, timestamp: str, signature: bytes, *others: str
    ) -> None:
        """Write a signature, after the other items of its list."""
        time = [] if self._time_prefix is None else [self._time_prefix.decode() + timestamp]
        items = [*time, *others, self.prefix + ENCODERS[self.encoding](signature)]
        outgoing.put(self._selectors[0], (self.separator or "").join(items))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Verify a request and return its signed time. Raises SignatureRejected."""
        timestamp, signed_at, signatures = self.claims(request, now)
        content = (
            request.body if self._signs_body_only else self._template.render(request, timestamp)
        )
        require_match(keys, content, signatures)
        return signed_at

    def claims(self, request: Request, now: float) -> Claims:
        """Return the unverified timestamp and signatures. Raises SignatureRejected."""
        items = self._read_items(request)
        timestamp, signed_at = self._read_time(items, request, now)
        return timestamp, signed_at, self._decode_signatures(items)

    def _read_items(self, request: Request) -> list[bytes]:
        """Read the values that hold signatures, split into items if they are lists."""
        items: list[bytes] = []
        for selector in self._selectors:
            if (value := selector.read(request)) is not None:
                if self._separator is None:
                    items.append(value)
                else:
                    items += value.split(self._separator, MAX_ITEMS)
        if not items:
            raise SignatureRejected(f"no {_location(self._selectors[0])}", RejectionCause.MISSING)
        return items

    def _read_time(
        self, items: Sequence[bytes], request: Request, now: float
    ) -> tuple[bytes, float | None]:
        """Return the timestamp as signed, and its parsed time. Raises SignatureRejected."""
        if self.timestamp is None:
            return b"", None
        timestamps = self._find_timestamps(items, request)
        if len(timestamps) != 1:
            raise SignatureRejected(
                f"expected one timestamp, found {len(timestamps)}", RejectionCause.TIMESTAMP
            )
        timestamp = timestamps[0]
        signed_at = parse_timestamp(timestamp, self._time_style)
        check_window(signed_at, now, self.tolerance_seconds)
        return timestamp, signed_at

    def _find_timestamps(self, items: Sequence[bytes], request: Request) -> list[bytes]:
        if self._time_prefix is None:
            timestamp = read_first(self._time_selectors, request)
            return [] if timestamp is None else [timestamp]
        length = len(self._time_prefix)
        return [item[length:] for item in items if item.startswith(self._time_prefix)]

    def _decode_signatures(self, items: Sequence[bytes]) -> list[bytes]:
        prefix, decode = self._prefix, DECODERS[self.encoding]
        candidates = [item for item in items if item.startswith(prefix)] if prefix else items
        if not candidates:
            raise SignatureRejected(
                f"no {self.prefix}<signature> in the {_location(self._selectors[0])}",
                RejectionCause.MISSING,
            )
        decoded = [decode(candidate[len(prefix) :]) for candidate in candidates[:MAX_SIGNATURES]]
        signatures = [signature for signature in decoded if signature is not None]
        if not signatures:
            location = _location(self._selectors[0])
            raise SignatureRejected(
                f"the signature in the {location} is not valid {self.encoding}",
                RejectionCause.MALFORMED,
            )
        return signatures


def _with_time(coverage: Coverage, time_selectors: Sequence[Selector]) -> Coverage:
    """Return the coverage with the time, which is part of the content or in the covered body."""
    if not coverage.has_time:
        is_covered = any(coverage.covers(selector) for selector in time_selectors)
        return replace(coverage, has_time=is_covered)
    time = "|".join(selector_key(selector) for selector in time_selectors)
    return replace(coverage, values=(*coverage.values, time)) if time else coverage


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} {value!r} is not one of {', '.join(choices)}")


def _location(selector: Selector) -> str:
    return f"{selector.name} header" if isinstance(selector, HeaderSelector) else str(selector)
