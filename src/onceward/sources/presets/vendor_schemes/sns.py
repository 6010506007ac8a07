"""Amazon SNS signs named fields of the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import (
    VendorScheme,
    decode_base64,
    encode_base64,
    mismatch_error,
)
from onceward.sources.request import Request
from onceward.sources.schemes import RSA_SHA1, RSA_SHA256, Key
from onceward.sources.schemes.algorithms import Algorithm
from onceward.sources.schemes.named_secrets import key_name, make_named_keys, split_named_secret

KEY_FORMAT: Final = "TOPIC_ARN:certificate"


@dataclass(frozen=True, slots=True)
class Sns(VendorScheme):
    """Named fields of the body, each on two lines, signed by RSA.

    The secret is ``TOPIC_ARN:`` and Amazon's certificate: it signs the topics of all its customers.
    """

    at: str = "json:Signature"
    version: Literal["1", "2"] = "1"

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return f"{self._algorithm.name} over named fields of the body, base64, in json:Signature"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Amazon's certificate, for one topic. Raises ConfigurationError."""
        topic, _ = split_named_secret(secret, KEY_FORMAT)
        if not topic.startswith("arn:"):
            raise ConfigurationError(f"is not {KEY_FORMAT}")
        return make_named_keys(secret, KEY_FORMAT, self._algorithm.keys)

    @property
    def _algorithm(self) -> Algorithm:
        return RSA_SHA1 if self.version == "1" else RSA_SHA256

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """What is checked, in its order."""
        return (
            RejectionCause.MISSING,
            RejectionCause.MALFORMED,
            RejectionCause.MISMATCH,
            RejectionCause.WRONG_TARGET,
        )

    def sign(self, secret: str | bytes, draft: OutgoingRequest, now: float) -> None:  # noqa: ARG002
        """Put the signature into the body. Raises ConfigurationError."""
        message = draft.document()
        try:
            content = _signed_content(message if isinstance(message, dict) else {})
        except SignatureRejected as rejected:
            raise ConfigurationError(rejected.check) from None
        message["SignatureVersion"] = self.version
        _, private_key = split_named_secret(secret, KEY_FORMAT)
        message["Signature"] = encode_base64(self._algorithm.signer(private_key)(content))
        draft.body = msgspec.json.encode(message)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the fields were signed."""
        message = request.document if isinstance(request.document, dict) else {}
        sent = message.get("Signature")
        if not isinstance(sent, str):
            raise SignatureRejected("no json:Signature", RejectionCause.MISSING)
        if message.get("SignatureVersion") != self.version:
            raise SignatureRejected(
                f"the signature is not of version {self.version}", RejectionCause.MALFORMED
            )
        signature = decode_base64(sent.encode(errors="replace"), "Signature")
        content = _signed_content(message)
        matching_keys = [key for key in keys if key.verifies(content, (signature,))]
        if not matching_keys:
            raise mismatch_error(len(keys))
        if message["TopicArn"] not in [key_name(key) for key in matching_keys]:
            raise SignatureRejected(
                "it is of a topic that is not the source's", RejectionCause.WRONG_TARGET
            )


def _signed_content(message: dict[str, Any]) -> bytes:
    is_notification = message.get("Type") == "Notification"
    names = ["Message", "MessageId", "Subject" if is_notification else "SubscribeURL"]
    names += ["Timestamp"] if is_notification else ["Timestamp", "Token"]
    lines = []
    for name in [*names, "TopicArn", "Type"]:
        value = message.get(name)
        if name == "Subject" and value is None:
            continue
        if not isinstance(value, str):
            raise SignatureRejected(f"no json:{name}, which is signed", RejectionCause.MISSING)
        lines.append(f"{name}\n{value}\n")
    return "".join(lines).encode(errors="surrogatepass")
