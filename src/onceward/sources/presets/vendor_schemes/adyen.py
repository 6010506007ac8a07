"""Adyen signs eight fields of each item in a standard webhook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import VendorScheme, decode_signature
from onceward.sources.request import Request
from onceward.sources.schemes import BodyCoverage, Coverage, Hmac, Key
from onceward.sources.schemes.algorithms import as_hex
from onceward.sources.schemes.encodings import encode_base64
from onceward.sources.schemes.scheme import require_match, signing

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
    def separator_safety(self) -> str:
        """The colons between the fields."""
        return "of the fields joined by colons, only merchantReference may contain one"

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
        with signing():
            for item in _items(document):
                signature = encode_base64(signer(_signed_content(item)))
                data = item.get("additionalData")
                data = data if isinstance(data, dict) else {}
                item["additionalData"] = {**data, "hmacSignature": signature}
        outgoing.body = msgspec.json.encode(document)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless every item has a valid signature."""
        for item in _items(request.document):
            data = item.get("additionalData")
            sent = data.get("hmacSignature") if isinstance(data, dict) else None
            if not isinstance(sent, str):
                message = "an item has no additionalData.hmacSignature"
                raise SignatureRejected(message, RejectionCause.MISSING)
            signature = decode_signature(sent.encode(errors="replace"), "hmacSignature")
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
    """Return the signed text of an item. Raises SignatureRejected.

    Adyen joins the values with colons and escapes none. Only the merchant's own reference may
    contain colons: with one such value, the text can be cut in no other way.
    """
    amount = item.get("amount")
    amount = amount if isinstance(amount, dict) else {}
    fields = [
        _plain_text(item, "pspReference"),
        _plain_text(item, "originalReference"),
        _plain_text(item, "merchantAccountCode"),
        _text(item, "merchantReference"),
        _number(amount, "value"),
        _plain_text(amount, "currency"),
        _plain_text(item, "eventCode"),
        _success(item),
    ]
    return ":".join(fields).encode(errors="surrogatepass")


def _text(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _malformed(f"{name} must be a string")
    return value


def _plain_text(members: dict[str, Any], name: str) -> str:
    value = _text(members, name)
    if ":" in value:
        raise _malformed(f"{name} contains a colon")
    return value


def _number(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if value is None:
        return ""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _malformed(f"{name} must be a whole number")
    return str(value)


def _success(item: dict[str, Any]) -> str:
    value = item.get("success")
    if value not in ("true", "false"):  # the boolean would be signed alike, but is no part of an id
        raise _malformed('success must be "true" or "false", as text')
    return str(value)


def _malformed(fault: str) -> SignatureRejected:
    return SignatureRejected(f"an item is not Adyen's: {fault}", RejectionCause.MALFORMED)
