"""Amazon SNS signs named fields of the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from onceward.draft import Draft
from onceward.errors import ConfigurationError, SignatureRejected, Step
from onceward.providers.peculiar.base import OwnScheme, from_base64, to_base64
from onceward.request import Request
from onceward.schemes import RSA_SHA1, RSA_SHA256, Key
from onceward.schemes.algorithms import Algorithm
from onceward.schemes.interface import require_match


@dataclass(frozen=True, slots=True)
class Sns(OwnScheme):
    """Named fields of the body, each on two lines, signed by RSA. The secret is the certificate."""

    at: str = "json:Signature"
    version: Literal["1", "2"] = "1"

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return f"{self._algorithm.name} over named fields of the body, base64, in json:Signature"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Amazon's certificate, in PEM. Raises ConfigurationError."""
        return self._algorithm.keys(secret)

    @property
    def _algorithm(self) -> Algorithm:
        return RSA_SHA1 if self.version == "1" else RSA_SHA256

    def sign(self, secret: str | bytes, draft: Draft, now: float) -> None:  # noqa: ARG002
        """Put the signature into the body. Raises ConfigurationError."""
        message = draft.document()
        try:
            content = _content(message if isinstance(message, dict) else {})
        except SignatureRejected as rejected:
            raise ConfigurationError(rejected.check) from None
        message["SignatureVersion"] = self.version
        message["Signature"] = to_base64(self._algorithm.signer(secret)(content))
        draft.body = msgspec.json.encode(message)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless the fields were signed."""
        message = request.document if isinstance(request.document, dict) else {}
        sent = message.get("Signature")
        if not isinstance(sent, str):
            raise SignatureRejected("no json:Signature", Step.FOUND)
        if message.get("SignatureVersion") != self.version:
            raise SignatureRejected(f"the signature is not of version {self.version}", Step.READ)
        signature = from_base64(sent.encode(errors="replace"), "Signature")
        require_match(keys, _content(message), (signature,))


def _content(message: dict[str, Any]) -> bytes:
    is_notification = message.get("Type") == "Notification"
    names = ["Message", "MessageId", "Subject" if is_notification else "SubscribeURL"]
    names += ["Timestamp"] if is_notification else ["Timestamp", "Token"]
    lines = []
    for name in [*names, "TopicArn", "Type"]:
        value = message.get(name)
        if name == "Subject" and value is None:
            continue
        if not isinstance(value, str):
            raise SignatureRejected(f"no json:{name}, which is signed", Step.FOUND)
        lines.append(f"{name}\n{value}\n")
    return "".join(lines).encode(errors="surrogatepass")
