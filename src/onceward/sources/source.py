"""A configured sender: it verifies requests and identifies the events they contain."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.model.events import Arrival, DuplicateBody, Identity, SourceMode
from onceward.model.retry import RetryRules
from onceward.sources.challenge import ChallengeCredentials, Reply, can_provision_secret
from onceward.sources.event_reader import EventReader, IdentifiedEvent, make_event_reader
from onceward.sources.identify import identify_as, reads_headers
from onceward.sources.presets import Preset
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Key, Scheme

MAX_STORED_HEADER_BYTES: Final = 1024
"""The longest header value that is stored with an event: each event of a request has a copy."""

OMITTED_HEADERS: Final = "onceward-omitted-headers"
"""The member of the stored headers that names those whose values were too long."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Source:
    """A configured sender. `make_source` checks the configuration and builds it."""

    name: str
    preset: Preset
    scheme: Scheme
    kept_headers: tuple[tuple[str, bytes], ...]
    """The headers stored with a payload: each name as text, and as the key in `Headers`."""
    unsigned: bool = False
    keys: tuple[Key, ...] = field(default=(), repr=False)
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """The secrets as bytes. They must never appear in a log, an error or a response."""
    url: str | None = None
    """The configured public URL; None if the URL of each request is used."""
    needs_url: bool = False
    verify_token: bytes | None = field(default=None, repr=False)
    duplicate_body: DuplicateBody = DuplicateBody.ALLOWED
    """The policy for an event whose body was recorded under another id."""
    volatile_fields: tuple[re.Pattern[bytes], ...] = ()
    """Patterns of fields that differ between deliveries of one event."""
    keeps_rejected: bool = False
    retry: RetryRules = field(default_factory=dict)
    """The retry rules of its jobs. Those of a handler win over them."""
    is_inline: bool = False
    """Whether its handlers run within the request."""
    reviews_unknown: bool = False
    """Whether an event of a type that no handler wants waits for a person."""
    reader: EventReader = field(init=False, repr=False, compare=False)
    _proof_headers: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    """The headers of which every request must have one; none if the body is needed to decide."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", make_event_reader(self.preset, self.scheme))
        challenge = self.preset.challenge
        may_be_unproved = self.unsigned or (challenge is not None and challenge.answers("POST"))
        needs_body = may_be_unproved or self.keeps_rejected
        headers = () if needs_body else _headers_of_proof(self.scheme)
        object.__setattr__(self, "_proof_headers", headers)

    @property
    def preset_name(self) -> str:
        """The name of the preset."""
        return self.preset.name

    @property
    def mode(self) -> SourceMode:
        """Where its handlers run."""
        return "inline" if self.is_inline else "background"

    @property
    def provisions_secret(self) -> bool:
        """Whether the sender may provision its secret."""
        return can_provision_secret(self.preset.challenge, self.verify_token)

    @property
    def has_authorization_proof(self) -> bool:
        """Whether the Authorization header carries the proof."""
        return "header:authorization" in self.scheme.at.lower()

    def public_url(self, query: str) -> str:
        """Return the configured URL, for a request with this query."""
        base, _, registered = (self.url or "").partition("?")
        signed = self.scheme.signed_query(registered, query)
        return f"{base}?{signed}" if signed else base

    def digest(self, content: bytes) -> bytes:
        """Return the hash of an event's content without its volatile fields."""
        for pattern in self.volatile_fields:
            content = pattern.sub(b"", content)
        return hashlib.sha256(content).digest()

    def with_secrets(self, secrets: Iterable[bytes]) -> Source:
        """Return the source with additional provisioned secrets, except unusable ones."""
        keys, all_secrets = list(self.keys), list(self.secrets)
        for secret in secrets:
            try:
                new_keys = () if secret in all_secrets else self.scheme.keys(secret)
            except ConfigurationError:
                continue
            if new_keys:
                keys += new_keys
                all_secrets.append(secret)
        return replace(self, keys=tuple(keys), secrets=tuple(all_secrets))

    def answer_challenge(self, request: Request) -> Reply | None:
        """Return the reply to an unsigned challenge, or None if the request is not a challenge."""
        challenge = self.preset.challenge
        return None if challenge is None else challenge.answer_unsigned(request, self._credentials)

    def missing_proof(self, headers: Headers) -> SignatureRejected | None:
        """Return the rejection of a request that no body can prove, or None if its body may."""
        names = self._proof_headers
        if not names or any(headers.joined(name) is not None for name in names):
            return None
        try:
            self.scheme.verify(self.keys, Request(headers, b""), now=0)
        except SignatureRejected as rejected:
            if rejected.cause is RejectionCause.MISSING:
                return rejected
        return None  # another check fails first without a body

    def verify(self, request: Request, now: float) -> list[IdentifiedEvent] | Reply:
        """Verify a request and return the events it contains, or the reply to a challenge.

        Raises SignatureRejected if the request does not verify, NoEventId if an event has no usable
        id, and RepeatedHeader if a header of the proof or the id occurs twice.
        """
        challenge = self.preset.challenge
        if challenge is not None and (reply := self.answer_challenge(request)):
            return reply
        if not self.unsigned:
            verify_request(self.preset, self.scheme, self.keys, request, now)
        if challenge is not None and (reply := challenge.answer_signed(request, self._credentials)):
            return reply
        return self.reader.read(request)

    @property
    def _credentials(self) -> ChallengeCredentials:
        return ChallengeCredentials(self.secrets, self.verify_token)

    def arrivals(self, events: Sequence[IdentifiedEvent], headers: Headers) -> list[Arrival]:
        """Return the arrivals to record for the events of a verified request."""
        kept_headers = self.encode_kept_headers(headers)
        return [
            Arrival(
                self.name,
                *identity,
                self.digest(content),
                kept_headers,
                body,
                self.duplicate_body,
                None if covered is None else self.digest(covered),
                self.reviews_unknown,
            )
            for identity, body, content, covered in events
        ]

    def reidentify(self, body: bytes, original: Identity) -> Identity:
        """Return the identity of a body without its headers.

        The id, and a type or reference that a header carries, are taken from `original`.
        """
        selectors = self.preset.identity_selectors
        identity = identify_as(original.event_id, selectors, Request(Headers([]), body))
        if reads_headers(selectors.type):
            identity = identity._replace(type=original.type)
        if selectors.reference is not None and reads_headers([selectors.reference]):
            identity = identity._replace(reference=original.reference)
        return identity

    def encode_kept_headers(self, headers: Headers) -> bytes:
        """Return the kept headers as a JSON object with lower-case names."""
        return encode_headers(self.kept_headers, headers)


def _headers_of_proof(scheme: Scheme) -> tuple[bytes, ...]:
    """Return the headers that may carry the proof; none if it may be elsewhere."""
    kinds = [selector.partition(":") for selector in scheme.at.split("|")]
    if any(kind != "header" for kind, _, _ in kinds):
        return ()
    return tuple(name.lower().encode() for _, _, name in kinds)


def encode_headers(kept: Iterable[tuple[str, bytes]], headers: Headers) -> bytes:
    """Return the headers named in `kept` as a JSON object; see `Source.kept_headers`.

    A value above `MAX_STORED_HEADER_BYTES` is omitted, and its name listed in `OMITTED_HEADERS`.
    """
    values, omitted = {}, []
    for name, key in kept:
        value = headers.joined(key)
        if value is None:
            continue
        if len(value) <= MAX_STORED_HEADER_BYTES:
            values[name] = value.decode("latin-1")
        else:
            omitted.append(name)
    if omitted:
        values[OMITTED_HEADERS] = ", ".join(omitted)
    return _encode(values)


def verify_request(
    preset: Preset, scheme: Scheme, keys: Sequence[Key], request: Request, now: float
) -> float | None:
    """Verify that the provider signed a request, and as an event. Return the signed time.

    Raises SignatureRejected, and RepeatedHeader if a header of the proof occurs twice.
    """
    signed_at = scheme.verify(keys, request, now)
    preset.layout.check(request)
    return signed_at
