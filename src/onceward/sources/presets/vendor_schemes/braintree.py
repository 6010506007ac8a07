"""Braintree signs one form field, and names the key it used."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.challenge import Challenge, ChallengeCredentials, Reply
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import VendorScheme
from onceward.sources.request import Request
from onceward.sources.schemes import BodyCoverage, Coverage, Hmac, Key
from onceward.sources.schemes.algorithms import secret_bytes
from onceward.sources.schemes.labelled_keys import key_name
from onceward.sources.schemes.named_secrets import make_named_keys, split_named_secret
from onceward.sources.schemes.scheme import MAX_SIGNATURES, mismatch_error
from onceward.sources.selectors import FieldSelector

KEY_FORMAT: Final = "public_key:private_key"
PAYLOAD_FIELD: Final = FieldSelector("form", "bt_payload")
SIGNATURE_FIELD: Final = FieldSelector("form", "bt_signature")
_CHALLENGE: Final = re.compile(r"[a-f0-9]{20,32}")
_DIGEST: Final = re.compile(rb"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Braintree(VendorScheme):
    """A signature over ``bt_payload``. The secret is ``public_key:private_key``."""

    at: str = "form:bt_signature"

    @property
    def coverage(self) -> Coverage:
        """The payload."""
        return Coverage(BodyCoverage.FIELDS, values=(str(PAYLOAD_FIELD),))

    @property
    def summary(self) -> str:
        """A one-line description for people."""
        return "HMAC-SHA1 over form:bt_payload, hex, in form:bt_signature"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Return the private key, named by the public key. Raises ConfigurationError."""
        return make_named_keys(secret, KEY_FORMAT, _ALGORITHM.keys)

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:  # noqa: ARG002
        """Add the signature to the form. Raises ConfigurationError."""
        payload = PAYLOAD_FIELD.read(outgoing.request()) or b""
        outgoing.put(SIGNATURE_FIELD, _named_signature(secret, payload))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the payload was signed with one of the keys."""
        payload, signature_list = _read_fields(request)
        signatures = _parse_signatures(signature_list)
        for key in keys:
            own = [digest for name, digest in signatures if name == key_name(key).encode()]
            # Some form parsers strip the payload's trailing line break.
            if key.verifies(payload, own) or key.verifies(payload + b"\n", own):
                return
        raise mismatch_error(len(keys))


def _read_fields(request: Request) -> tuple[bytes, bytes]:
    """Return the payload and the signature list. Raises SignatureRejected."""
    names = [name for name, _ in request.form]
    if any(names.count(field.name) > 1 for field in (PAYLOAD_FIELD, SIGNATURE_FIELD)):
        raise SignatureRejected("a field occurs more than once", RejectionCause.MISSING)
    payload = PAYLOAD_FIELD.read(request)
    if payload is None:
        raise SignatureRejected(f"no {PAYLOAD_FIELD}", RejectionCause.MISSING)
    signature_list = SIGNATURE_FIELD.read(request)
    if signature_list is None:
        raise SignatureRejected(f"no {SIGNATURE_FIELD}", RejectionCause.MISSING)
    return payload, signature_list


def _parse_signatures(signature_list: bytes) -> list[tuple[bytes, bytes]]:
    """Return the key name and digest of each signature. Raises SignatureRejected."""
    pairs = [pair.partition(b"|") for pair in signature_list.split(b"&")[:MAX_SIGNATURES]]
    signatures = [
        (name, bytes.fromhex(digest.decode()))
        for name, _, digest in pairs
        if _DIGEST.fullmatch(digest)
    ]
    if not signatures:
        raise SignatureRejected(
            "no <key>|<signature> in form:bt_signature", RejectionCause.MALFORMED
        )
    return signatures


class _HashedKeyHmac(Hmac):
    """HMAC-SHA1 keyed with the SHA-1 of the private key."""

    __slots__ = ()

    def _decoded(self, secret: str | bytes) -> tuple[bytes, ...]:
        return (hashlib.sha1(secret_bytes(secret)).digest(),)  # noqa: S324 - Braintree's choice


_ALGORITHM: Final = _HashedKeyHmac("sha1")


def _named_signature(secret: str | bytes, content: bytes) -> str:
    """Return ``public_key|signature``. Raises ConfigurationError."""
    name, private = split_named_secret(secret, KEY_FORMAT)
    return f"{name}|{_ALGORITHM.signer(private)(content).hex()}"


def _challenge_reply(request: Request, credentials: ChallengeCredentials) -> Reply | None:
    challenge = dict(request.query).get("bt_challenge", "")
    if not credentials.secrets or not _CHALLENGE.fullmatch(challenge):
        return None
    return Reply(body=_named_signature(credentials.secrets[0], challenge.encode()).encode())


CHALLENGE: Final = Challenge(unsigned=_challenge_reply, methods=("GET",))
