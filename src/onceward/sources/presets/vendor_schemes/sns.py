"""Amazon SNS signs a fixed list of fields in the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

import msgspec

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import (
    VendorScheme,
    decode_signature,
)
from onceward.sources.request import Request
from onceward.sources.schemes import RSA_SHA1, RSA_SHA256, BodyCoverage, Coverage, Key
from onceward.sources.schemes.algorithms import Algorithm
from onceward.sources.schemes.encodings import encode_base64
from onceward.sources.schemes.labelled_keys import key_name
from onceward.sources.schemes.named_secrets import make_named_keys, split_named_secret
from onceward.sources.schemes.scheme import mismatch_error, signing
from onceward.sources.schemes.times import TIME_STYLES, check_window, parse_timestamp

_TIME_STYLE: Final = TIME_STYLES["iso"]
KEY_FORMAT: Final = "TOPIC_ARN:certificate"
_CONFIRMATION: Final = (
    "Message",
    "MessageId",
    "SubscribeURL",
    "Timestamp",
    "Token",
    "TopicArn",
    "Type",
)
_SIGNED_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}
"""The signed fields of each type, in the order of the signed text. A subject may be absent."""


@dataclass(frozen=True, slots=True)
class Sns(VendorScheme):
    """An RSA signature over fields of the body, with each name and value on a line of its own.

    The secret is ``TOPIC_ARN:certificate``. Amazon's certificate signs every customer's topics, so
    the topic is checked as well.
    """

    at: str = "json:Signature"
    version: Literal["1", "2"] = "1"
    tolerance_seconds: int | None = None
    """How far the time of publication may be off; None because Amazon may deliver days later."""

    def with_tolerance(self, seconds: int | None) -> Self:
        """Return the scheme with another tolerance of the signed time; None checks none."""
        return replace(self, tolerance_seconds=seconds)

    @property
    def separator_safety(self) -> str:
        """The lines of the text."""
        return "each name and value is a line; only the first value may contain line breaks"

    @property
    def coverage(self) -> Coverage:
        """The fields that are signed in every message, and those of one type."""
        names = sorted({name for names in _SIGNED_FIELDS.values() for name in names})
        values = tuple(f"json:{name}" for name in names)
        return Coverage(BodyCoverage.FIELDS, values=values, has_time=True)

    @property
    def summary(self) -> str:
        """A one-line description for people."""
        return f"{self._algorithm.name} over fields of the body, base64, in json:Signature"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Return the certificate's key, named by the topic. Raises ConfigurationError."""
        topic, _ = split_named_secret(secret, KEY_FORMAT)
        if not topic.startswith("arn:"):
            raise ConfigurationError(f"is not {KEY_FORMAT}")
        return make_named_keys(secret, KEY_FORMAT, self._algorithm.keys)

    @property
    def _algorithm(self) -> Algorithm:
        return RSA_SHA1 if self.version == "1" else RSA_SHA256

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The causes of rejection, in the order of the checks."""
        return (
            RejectionCause.MISSING,
            RejectionCause.MALFORMED,
            RejectionCause.MISMATCH,
            RejectionCause.WRONG_TARGET,
            RejectionCause.TIMESTAMP,
        )

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Add the time and the signature to the body. Raises ConfigurationError."""
        message = outgoing.document()
        message = message if isinstance(message, dict) else {}
        message["Timestamp"] = _TIME_STYLE.format(now)
        with signing():
            content = _signed_content(message)
        message["SignatureVersion"] = self.version
        _, private_key = split_named_secret(secret, KEY_FORMAT)
        message["Signature"] = encode_base64(self._algorithm.signer(private_key)(content))
        outgoing.body = msgspec.json.encode(message)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float:
        """Return the signed time.

        Raises SignatureRejected unless Amazon signed the fields, for a topic of the source.
        """
        message = request.document if isinstance(request.document, dict) else {}
        sent = message.get("Signature")
        if not isinstance(sent, str):
            raise SignatureRejected("no json:Signature", RejectionCause.MISSING)
        if message.get("SignatureVersion") != self.version:
            raise SignatureRejected(
                f"the signature is not of version {self.version}", RejectionCause.MALFORMED
            )
        signature = decode_signature(sent.encode(errors="replace"), "Signature")
        content = _signed_content(message)
        matching_keys = [key for key in keys if key.verifies(content, (signature,))]
        if not matching_keys:
            raise mismatch_error(len(keys))
        if message["TopicArn"] not in [key_name(key) for key in matching_keys]:
            raise SignatureRejected("the message is for another topic", RejectionCause.WRONG_TARGET)
        signed_at = parse_timestamp(message["Timestamp"].encode(errors="replace"), _TIME_STYLE)
        check_window(signed_at, now, self.tolerance_seconds)
        return signed_at


def _signed_content(message: dict[str, Any]) -> bytes:
    """Return the signed text of a message. Raises SignatureRejected.

    Names and values are lines of one text. A line break in a value would let the text of one
    message be read as that of another; only the first value, `Message`, may contain some.
    """
    kind = message.get("Type")
    names = _SIGNED_FIELDS.get(kind) if isinstance(kind, str) else None
    if names is None:
        raise SignatureRejected("json:Type is none of Amazon's three", RejectionCause.MALFORMED)
    lines = []
    for name in names:
        value = message.get(name)
        if name == "Subject" and value is None:
            continue
        if not isinstance(value, str):
            raise SignatureRejected(f"no json:{name}, which is signed", RejectionCause.MISSING)
        if "\n" in value and name != "Message":
            raise SignatureRejected(f"json:{name} has a line break", RejectionCause.MALFORMED)
        lines.append(f"{name}\n{value}\n")
    return "".join(lines).encode(errors="surrogatepass")
