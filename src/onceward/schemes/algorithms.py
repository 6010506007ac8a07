"""The arithmetic of signatures: keyed digests, and public keys of three kinds.

A key is of one kind for good: a public key is never taken for the secret of a keyed digest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from onceward.errors import ConfigurationError
from onceward.schemes.interface import Key

PUBLIC_KEY_MARKS: Final = (b"-----BEGIN", b"whpk_")
_RSA_BITS_LEAST: Final = 2048


class Algorithm(Protocol):
    """Makes keys of one kind."""

    @property
    def name(self) -> str:
        """What people call it."""

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The keys that a configured secret stands for. Raises ConfigurationError."""


# How a secret is written. Each answers with the keys that it may stand for.

Decode = Callable[[bytes], tuple[bytes, ...]]


def as_text(secret: bytes) -> tuple[bytes, ...]:
    """The text itself is the key."""
    return (secret,)


def as_hex(secret: bytes) -> tuple[bytes, ...]:
    """Hexadecimal digits."""
    try:
        return (binascii.unhexlify(secret),)
    except binascii.Error:
        raise ConfigurationError("is not hexadecimal") from None


def as_base64(secret: bytes) -> tuple[bytes, ...]:
    """Base64, after ``whsec_`` where that is written before it."""
    try:
        return (base64.b64decode(secret.removeprefix(b"whsec_"), validate=True),)
    except binascii.Error:
        raise ConfigurationError("is not base64, with or without whsec_ before it") from None


def as_base64_or_text(secret: bytes) -> tuple[bytes, ...]:
    """Base64 after ``whsec_``, else the text itself."""
    return as_base64(secret) if secret.startswith(b"whsec_") else (secret,)


def as_text_or_base64(secret: bytes) -> tuple[bytes, ...]:
    """The text itself, and what it decodes to: the sender uses either."""
    try:
        return (secret, *as_base64(secret))
    except ConfigurationError:
        return (secret,)


def as_decomposed_text(secret: bytes) -> tuple[bytes, ...]:
    """The text with its characters taken apart (NFKD)."""
    try:
        return (unicodedata.normalize("NFKD", secret.decode()).encode(),)
    except UnicodeDecodeError:
        raise ConfigurationError("is not valid text") from None


class _HmacKey:
    """The two digests of RFC 2104, begun with the secret: to begin anew takes twice as long."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes, digest: str) -> None:
        block = hashlib.new(digest).block_size
        key = secret if len(secret) <= block else hashlib.new(digest, secret).digest()
        padded = key.ljust(block, b"\0")
        self._inner = hashlib.new(digest, bytes([byte ^ 0x36 for byte in padded]))
        self._outer = hashlib.new(digest, bytes([byte ^ 0x5C for byte in padded]))

    def made(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        expected = outer.digest()
        for signature in signatures:  # noqa: SIM110 - any() takes a fifth of the whole
            if hmac.compare_digest(expected, signature):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Hmac:
    """A secret that both sides have."""

    digest: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    written: Decode = as_text

    @property
    def name(self) -> str:
        """What people call it."""
        return f"HMAC-{self.digest.upper()}"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The keys that a configured secret stands for. Raises ConfigurationError."""
        return tuple(_HmacKey(key, self.digest) for key in self._decoded(secret))

    def _decoded(self, secret: str | bytes) -> tuple[bytes, ...]:
        text = secret_bytes(secret)
        if text.startswith(PUBLIC_KEY_MARKS):
            raise ConfigurationError("is a public key or a certificate; a shared secret is needed")
        keys = self.written(text)
        if not all(keys):  # anyone can sign with an empty key
            raise ConfigurationError("is empty")
        return keys


def secret_bytes(secret: str | bytes) -> bytes:
    """A configured secret as bytes. Raises ConfigurationError where it cannot be one."""
    try:
        key = secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise ConfigurationError("is not valid text") from None
    if not key:
        raise ConfigurationError("is empty")
    if key.strip(b"\r\n") != key and b"-----END" not in key:
        raise ConfigurationError("begins or ends with a line break")
    return key


class _PublicKey:
    """A public key, with the check that belongs to it."""

    __slots__ = ("_check",)

    def __init__(self, check: Callable[[bytes, bytes], None]) -> None:
        self._check = check

    def made(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        return any(self._holds(signature, content) for signature in signatures)

    def _holds(self, signature: bytes, content: bytes) -> bool:
        try:
            self._check(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Asymmetric:
    """A public key here, a private one at the sender's."""

    name: str
    load: Callable[[bytes], Any]
    check: Callable[[Any], Callable[[bytes, bytes], None]]

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The key that is configured. Raises ConfigurationError."""
        return (_PublicKey(self.check(self.load(secret_bytes(secret)))),)


def _decoded(text: bytes) -> bytes | None:
    """What hexadecimal digits or base64 stand for."""
    for decode in (binascii.unhexlify, lambda it: base64.b64decode(it, validate=True)):
        try:
            return decode(text)
        except binascii.Error:
            continue
    return None


def _ed25519_key(text: bytes) -> ed25519.Ed25519PublicKey:
    raw = _decoded(text.removeprefix(b"whpk_"))
    try:
        return ed25519.Ed25519PublicKey.from_public_bytes(raw or b"")
    except ValueError:
        message = "is not an Ed25519 public key: 32 bytes, as hexadecimal digits or base64"
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
    if key.key_size < _RSA_BITS_LEAST:
        message = f"is an RSA key of {key.key_size} bits; the least is {_RSA_BITS_LEAST}"
        raise ConfigurationError(message)
    return key


def _rsa(name: str, digest: hashes.HashAlgorithm) -> _Asymmetric:
    return _Asymmetric(
        name,
        _rsa_key,
        lambda key: (
            lambda signature, content: key.verify(signature, content, padding.PKCS1v15(), digest)
        ),
    )


_ECDSA_SHA256: Final = ec.ECDSA(hashes.SHA256())

ED25519: Final = _Asymmetric("Ed25519", _ed25519_key, lambda key: key.verify)
ECDSA_P256: Final = _Asymmetric(
    "ECDSA on P-256",
    _p256_key,
    lambda key: lambda signature, content: key.verify(signature, content, _ECDSA_SHA256),
)
RSA_SHA1: Final = _rsa("RSA with SHA-1", hashes.SHA1())  # noqa: S303 - AWS SNS has nothing else in version 1
RSA_SHA256: Final = _rsa("RSA with SHA-256", hashes.SHA256())
