"""Hexadecimal, base64 and base64url, as requests and keys contain them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, Literal

Encoding = Literal["hex", "base64", "base64url"]


def decode_hex(text: bytes) -> bytes | None:
    """Decode hexadecimal, or return None. Unlike bytes.fromhex(), refuse whitespace."""
    try:
        return binascii.unhexlify(text)
    except binascii.Error:
        return None


def decode_base64(text: bytes) -> bytes | None:
    """Decode base64 with its padding, or return None."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def decode_base64url(text: bytes) -> bytes | None:
    """Decode base64url, with or without its padding, or return None."""
    padded = text + b"=" * (-len(text) % 4)
    try:
        return base64.b64decode(padded, altchars=b"-_", validate=True)
    except binascii.Error:
        return None


def encode_base64(data: bytes) -> str:
    """Encode as base64."""
    return base64.b64encode(data).decode()


def encode_base64url(data: bytes) -> str:
    """Encode as base64url without padding, as in a JWT."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


DECODERS: Final[dict[Encoding, Callable[[bytes], bytes | None]]] = {
    "hex": decode_hex,
    "base64": decode_base64,
    "base64url": decode_base64url,
}
ENCODERS: Final[dict[Encoding, Callable[[bytes], str]]] = {
    "hex": bytes.hex,
    "base64": encode_base64,
    "base64url": encode_base64url,
}
