"""One configured sender: how its requests are verified, and what they are about."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from onceward.errors import ConfigurationError
from onceward.model.events import Arrival, DuplicateBody, Identity
from onceward.sources.challenge import ChallengeCredentials, Reply, can_provision_secret
from onceward.sources.identify import identify, identify_as, reads_headers
from onceward.sources.presets import Preset
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Key, Scheme

_encode = msgspec.json.Encoder().encode


IdentifiedEvent = tuple[Identity, bytes]
"""An event, and the bytes of it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A sender as configured. Made by `make_source`, which checks it."""

    name: str
    preset: Preset
    scheme: Scheme
    kept_headers: tuple[tuple[str, bytes], ...]
    unsigned: bool = False
    keys: tuple[Key, ...] = field(default=(), repr=False)
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """What must not be shown anywhere."""
    url: str | None = None
    """The public URL that the sender signs, where it is known."""
    needs_url: bool = False
    verify_token: bytes | None = field(default=None, repr=False)
    duplicate_body: DuplicateBody = DuplicateBody.ALLOWED
    """What is done with the body of another event, under another id."""
    volatile_fields: tuple[re.Pattern[bytes], ...] = ()
    """Each finds a member that differs between deliveries of one event."""
    keeps_rejected: bool = False

    @property
    def preset_name(self) -> str:
        """The name of its preset."""
        return self.preset.name

    @property
    def provisions_secret(self) -> bool:
        """Whether the sender may hand over its secret."""
        return can_provision_secret(self.preset.challenge, self.verify_token)

    @property
    def has_authorization_proof(self) -> bool:
        """Whether the proof is in the header that else is never kept."""
        return "header:authorization" in self.scheme.at.lower()

    def public_url(self, query: str) -> str:
        """The URL that is configured, with the query of a request: that is never the config's."""
        base = (self.url or "").partition("?")[0]
        return f"{base}?{query}" if query else base

    def digest(self, body: bytes) -> bytes:
        """What tells a body from another one: its hash, without what may differ."""
        for member in self.volatile_fields:
            body = member.sub(b"", body)
        return hashlib.sha256(body).digest()

    def with_secrets(self, secrets: Iterable[bytes]) -> Source:
        """The same source with secrets that its sender handed over; unusable ones are left out."""
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
        """The answer to what the sender asks before it signs anything; None where it does not."""
        challenge = self.preset.challenge
        return None if challenge is None else challenge.answer_unsigned(request, self._credentials)

    def verify(self, request: Request, now: float) -> list[IdentifiedEvent] | Reply:
        """Say what a genuine request is about: one event, or several where the sender packs them.

        A request that asks for an answer, and tells of nothing, has that answer.

        Raises SignatureRejected when it is not genuine, NoEventId when it has no usable id, and
        RepeatedHeader when a header that decides occurs twice.
        """
        challenge = self.preset.challenge
        if challenge is not None and (
            reply := challenge.answer_unsigned(request, self._credentials)
        ):
            return reply
        if not self.unsigned:
            self.scheme.verify(self.keys, request, now)
        if challenge is not None and (reply := challenge.answer_signed(request, self._credentials)):
            return reply
        return identify_events(self.preset, request)

    @property
    def _credentials(self) -> ChallengeCredentials:
        return ChallengeCredentials(self.secrets, self.verify_token)

    def arrivals(self, events: Sequence[IdentifiedEvent], headers: Headers) -> list[Arrival]:
        """What a genuine request brings, on its way to the ledger."""
        kept_headers = self.encode_kept_headers(headers)
        return [
            Arrival(
                self.name, *identity, self.digest(body), kept_headers, body, self.duplicate_body
            )
            for identity, body in events
        ]

    def reidentify(self, body: bytes, original: Identity) -> Identity:
        """Say what a body is about, by itself: what stands in a header is as it is known."""
        selectors = self.preset.identity_selectors
        identity = identify_as(original.event_id, selectors, Request(Headers([]), body))
        if reads_headers(selectors.type):
            identity = identity._replace(type=original.type)
        if selectors.reference is not None and reads_headers([selectors.reference]):
            identity = identity._replace(reference=original.reference)
        return identity

    def encode_kept_headers(self, headers: Headers) -> bytes:
        """The headers that are kept with the payload, as a JSON object with lower-case names."""
        values = {}
        for name, key in self.kept_headers:
            value = headers.joined(key)
            if value is not None:
                values[name] = value.decode("latin-1")
        return _encode(values)


def identify_events(preset: Preset, request: Request) -> list[IdentifiedEvent]:
    """The events of a genuine request. Raises NoEventId where one has no usable id."""
    selectors = preset.identity_selectors
    return [(identify(selectors, part), part.body) for part in preset.layout.unpack(request)]
