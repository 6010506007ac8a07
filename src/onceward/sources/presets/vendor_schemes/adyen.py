"""Adyen signs eight fields of each item in a standard webhook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import VendorScheme, decode_base64, encode_base64
from onceward.sources.request import Request
from onceward.sources.schemes import BodyCoverage, Coverage, Hmac, Key
from onceward.sources.schemes.algorithms import as_hex
from onceward.sources.schemes.scheme import require_match

_COVERED: Final = tuple(
    f"json:NotificationRequestItem.{path}"
    for path in (
        "pspReference",
        "originalReference",
        "merchantAccountCode",
        "merchantReference",
        "amount.value",
        "amount.currency",
        "eventCode",
        "success",
    )
)


@dataclass(frozen=True, slots=True)
class AdyenItems(VendorScheme):
    """A signature in each item, over eight of its fields."""

    at: str = "json:notificationItems"

    @property
    def coverage(self) -> Coverage:
        """Eight fields of each item."""
        return Coverage(BodyCoverage.FIELDS, values=_COVERED)

    @property
    def summary(self) -> str:
        """A one-line description for people."""
        return "HMAC-SHA256 over eight fields of each item, base64, in the item"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Return the key for a hex secret. Raises ConfigurationError."""
        return Hmac(secret_encoding=as_hex).keys(secret)

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:  # noqa: ARG002
        """Add a signature to each item. Raises ConfigurationError."""
        signer = Hmac(secret_encoding=as_hex).signer(secret)
        document = outgoing.document()
        try:
            for item in _items(document):
                signature = encode_base64(signer(_signed_content(item)))
                data = item.get("additionalData")
                data = data if isinstance(data, dict) else {}
                item["additionalData"] = {**data, "hmacSignature": signature}
        except SignatureRejected as rejected:
            raise ConfigurationError(rejected.check) from None
        outgoing.body = msgspec.json.encode(document)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless every item has a valid signature."""
        for item in _items(request.document):
            data = item.get("additionalData")
            sent = data.get("hmacSignature") if isinstance(data, dict) else None
            if not isinstance(sent, str):
                message = "an item has no additionalData.hmacSignature"
                raise SignatureRejected(message, RejectionCause.MISSING)
            signature = decode_base64(sent.encode(errors="replace"), "hmacSignature")
            require_match(keys, _signed_content(item), (signature,))


def _items(document: Any) -> Iterator[dict[str, Any]]:
    items = document.get("notificationItems") if isinstance(document, dict) else None
    if not isinstance(items, list) or not items:
        raise SignatureRejected("no notificationItems in the body", RejectionCause.MISSING)
    for holder in items:
        item = holder.get("NotificationRequestItem") if isinstance(holder, dict) else None
        if not isinstance(item, dict):
            raise SignatureRejected(
                "an item has no NotificationRequestItem", RejectionCause.MISSING
            )
        yield item


def _signed_content(item: dict[str, Any]) -> bytes:
    amount = item.get("amount")
    amount = amount if isinstance(amount, dict) else {}
    fields = [
        item.get("pspReference"),
        item.get("originalReference"),
        item.get("merchantAccountCode"),
        item.get("merchantReference"),
        amount.get("value"),
        amount.get("currency"),
        item.get("eventCode"),
        item.get("success"),
    ]
    return ":".join(_field_text(value) for value in fields).encode(errors="surrogatepass")


def _field_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
