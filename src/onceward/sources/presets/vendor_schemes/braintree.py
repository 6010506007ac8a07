"""Braintree signs one field of its form, under the name of a key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.challenge import Challenge, ChallengeCredentials, Reply
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import VendorScheme, unmatched
from onceward.sources.request import Request
from onceward.sources.schemes import Hmac, Key
from onceward.sources.schemes.algorithms import secret_bytes
from onceward.sources.schemes.named_secrets import key_name, make_named_keys, split_named_secret
from onceward.sources.schemes.scheme import MAX_SIGNATURES
from onceward.sources.selectors import FieldSelector

FORM: Final = "public_key:private_key"
PAYLOAD: Final = FieldSelector("form", "bt_payload")
SIGNATURE: Final = FieldSelector("form", "bt_signature")
_CHALLENGE: Final = re.compile(r"[a-f0-9]{20,32}")
_DIGEST: Final = re.compile(rb"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Braintree(VendorScheme):
    """The secret is ``public_key:private_key``."""

    at: str = "form:bt_signature"

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return "HMAC-SHA1 over form:bt_payload, hex, in form:bt_signature"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The private key, under its public name. Raises ConfigurationError."""
        return make_named_keys(secret, FORM, _ALGORITHM.keys)

    def sign(self, secret: str | bytes, draft: OutgoingRequest, now: float) -> None:  # noqa: ARG002
        """Put the signature into the form. Raises ConfigurationError."""
        draft.put(SIGNATURE, signed(secret, PAYLOAD.read(draft.request()) or b""))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the payload was signed."""
        names = [name for name, _ in request.form]
        if any(names.count(place.name) > 1 for place in (PAYLOAD, SIGNATURE)):
            raise SignatureRejected("a field occurs more than once", RejectionCause.MISSING)
        payload, sent = PAYLOAD.read(request), SIGNATURE.read(request)
        if payload is None or sent is None:
            missing = PAYLOAD if payload is None else SIGNATURE
            raise SignatureRejected(f"no {missing}", RejectionCause.MISSING)
        if _CHALLENGE.fullmatch(payload.decode("latin-1")):
            raise SignatureRejected(
                "the payload is a challenge, not an event", RejectionCause.MALFORMED
            )
        pairs = [pair.partition(b"|") for pair in sent.split(b"&")[:MAX_SIGNATURES]]
        digests = [(name, digest) for name, _, digest in pairs if _DIGEST.fullmatch(digest)]
        if not digests:
            raise SignatureRejected(
                "no <key>|<signature> in form:bt_signature", RejectionCause.MALFORMED
            )
        for key in keys:
            own = [
                bytes.fromhex(digest.decode())
                for name, digest in digests
                if name == key_name(key).encode()
            ]
            # A line break at the end is lost on some ways.
            if key.verifies(payload, own) or key.verifies(payload + b"\n", own):
                return
        raise unmatched(len(keys))


class _Sha1(Hmac):
    """The hash of the private key is the key."""

    __slots__ = ()

    def _decoded(self, secret: str | bytes) -> tuple[bytes, ...]:
        return (hashlib.sha1(secret_bytes(secret)).digest(),)  # noqa: S324 - the sender's choice


_ALGORITHM: Final = _Sha1("sha1")


def signed(secret: str | bytes, content: bytes) -> str:
    """A signature, behind the name of its key."""
    name, private = split_named_secret(secret, FORM)
    return f"{name}|{_ALGORITHM.signer(private)(content).hex()}"


def _answer(request: Request, known: ChallengeCredentials) -> Reply | None:
    challenge = dict(request.query).get("bt_challenge", "")
    if not known.secrets or not _CHALLENGE.fullmatch(challenge):
        return None
    return Reply(body=signed(known.secrets[0], challenge.encode()).encode())


CHALLENGE: Final = Challenge(unsigned=_answer, methods=("GET",))
"""Anyone may ask, and has it signed: so what could be a challenge is no payload."""
