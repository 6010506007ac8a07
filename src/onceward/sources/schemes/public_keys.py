"""Public keys of three kinds, and the checks that belong to them.

Imported when a source has such a key: the library behind it takes ten megabytes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from onceward.errors import ConfigurationError

RSA_BITS_LEAST: Final = 2048

Check = Callable[[bytes, bytes], None]


class PublicKey:
    """A public key, with the check that belongs to it."""

    __slots__ = ("_check",)

    def __init__(self, check: Check) -> None:
        self._check = check

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        """Whether one of the signatures was made over the content with the private key."""
        return any(self._holds(signature, content) for signature in signatures)

    def _holds(self, signature: bytes, content: bytes) -> bool:
        try:
            self._check(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True


def _decoded(text: bytes) -> bytes | None:
    """What hexadecimal digits or base64 stand for."""
    for decode in (binascii.unhexlify, lambda it: base64.b64decode(it, validate=True)):
        try:
            return decode(text)
        except binascii.Error:
            continue
    return None


def _ed25519_key(text: bytes) -> ed25519.Ed25519PublicKey:
    if text.startswith(b"-----BEGIN"):
        key = _public_key(text)
        if isinstance(key, ed25519.Ed25519PublicKey):
            return key
        raise ConfigurationError("is not an Ed25519 public key")
    raw = _decoded(text.removeprefix(b"whpk_"))
    try:
        return ed25519.Ed25519PublicKey.from_public_bytes(raw or b"")
    except ValueError:
        message = "is not an Ed25519 public key: PEM, or 32 bytes in hexadecimal digits or base64"
        raise ConfigurationError(message) from None


def _public_key(text: bytes) -> Any:
    """A public key from PEM, a certificate in PEM, or base64 of DER."""
    try:
        if b"CERTIFICATE" in text:
            return x509.load_pem_x509_certificate(text).public_key()
        if text.startswith(b"-----BEGIN"):
            return serialization.load_pem_public_key(text)
        return serialization.load_der_public_key(_decoded(text) or b"")
    except (ValueError, UnsupportedAlgorithm):
        message = "is not a public key or a certificate: PEM, or base64 of DER"
        raise ConfigurationError(message) from None


def _p256_key(text: bytes) -> ec.EllipticCurvePublicKey:
    key = _public_key(text)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigurationError("is not a public key on the curve P-256")
    return key


def _rsa_key(text: bytes) -> rsa.RSAPublicKey:
    key = _public_key(text)
    if not isinstance(key, rsa.RSAPublicKey):
        raise ConfigurationError("is not an RSA public key")
    if key.key_size < RSA_BITS_LEAST:
        message = f"is an RSA key of {key.key_size} bits; the least is {RSA_BITS_LEAST}"
        raise ConfigurationError(message)
    return key


def ed25519_check(text: bytes) -> Check:
    """A check by an Ed25519 key: 32 bytes, as hexadecimal digits or base64."""
    return _ed25519_key(text).verify


def p256_check(text: bytes) -> Check:
    """A check by a key on the curve P-256, with SHA-256."""
    key = _p256_key(text)
    return lambda signature, content: key.verify(signature, content, ec.ECDSA(hashes.SHA256()))


def rsa_sha1_check(text: bytes) -> Check:
    """A check by an RSA key with SHA-1, which version 1 of AWS SNS has."""
    return _rsa_check(text, hashes.SHA1())  # noqa: S303 - the sender has nothing else


def rsa_sha256_check(text: bytes) -> Check:
    """A check by an RSA key with SHA-256."""
    return _rsa_check(text, hashes.SHA256())


def _rsa_check(text: bytes, digest: hashes.HashAlgorithm) -> Check:
    key = _rsa_key(text)
    return lambda signature, content: key.verify(signature, content, padding.PKCS1v15(), digest)
