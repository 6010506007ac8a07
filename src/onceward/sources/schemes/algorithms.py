"""Signature algorithms: HMAC, and public keys of three kinds.

A key belongs to one algorithm: a public key is never used as an HMAC secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from onceward.errors import ConfigurationError
from onceward.sources.schemes.scheme import Key, Signer

MIN_SECRET_BYTES: Final = 8
PUBLIC_KEY_PREFIXES: Final = (
    b"whpk_",
    # The beginnings of public keys in base64-encoded DER: Ed25519, P-256, RSA.
    b"MCowBQYDK2Vw",
    b"MFkwEwYHKoZIzj0",
    b"MIIBIjANBgkqhkiG9w0B",
    b"MIIBojANBgkqhkiG9w0B",
    b"MIICIjANBgkqhkiG9w0B",
)
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_DIGESTS: Final = ("sha1", "sha256", "sha384", "sha512")


class Algorithm(Protocol):
    """A signature algorithm: parses secrets into keys and signers."""

    @property
    def name(self) -> str:
        """The name, as shown in descriptions."""

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Parse a configured secret into keys. Raises ConfigurationError."""

    def signer(self, secret: str | bytes) -> Signer:
        """Return a signer for a shared secret or a private key. Raises ConfigurationError."""


# Encodings of secrets.

SecretDecoder = Callable[[bytes], tuple[bytes, ...]]
"""Returns the keys that a configured secret may stand for. Raises ConfigurationError."""


def as_text(secret: bytes) -> tuple[bytes, ...]:
    """Use the text itself."""
    return (secret,)


def as_hex(secret: bytes) -> tuple[bytes, ...]:
    """Decode hexadecimal."""
    try:
        return (binascii.unhexlify(secret),)
    except binascii.Error:
        raise ConfigurationError("is not hexadecimal") from None


def as_base64(secret: bytes) -> tuple[bytes, ...]:
    """Decode base64, with or without the prefix ``whsec_`` and the padding."""
    text = secret.removeprefix(b"whsec_").rstrip(b"=")
    try:
        return (base64.b64decode(text + b"=" * (-len(text) % 4), validate=True),)
    except binascii.Error:
        raise ConfigurationError("is not base64, with or without the prefix whsec_") from None


def as_base64_or_text(secret: bytes) -> tuple[bytes, ...]:
    """Decode base64 after the prefix ``whsec_``; use other text itself."""
    return as_base64(secret) if secret.startswith(b"whsec_") else (secret,)


def as_text_or_base64(secret: bytes) -> tuple[bytes, ...]:
    """Use the text itself and also its base64 decoding, for senders that use either."""
    try:
        return (secret, *as_base64(secret))
    except ConfigurationError:
        return (secret,)


def as_decomposed_text(secret: bytes) -> tuple[bytes, ...]:
    """Normalize the text to NFKD."""
    try:
        return (unicodedata.normalize("NFKD", secret.decode()).encode(),)
    except UnicodeDecodeError:
        raise ConfigurationError("is not valid UTF-8") from None


class _HmacKey:
    """The inner and outer hash of RFC 2104 with the key absorbed, copied for each signature.

    Hashing the padded key again for each request would take twice as long.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes, digest: str) -> None:
        block = hashlib.new(digest).block_size
        key = secret if len(secret) <= block else hashlib.new(digest, secret).digest()
        padded = key.ljust(block, b"\0")
        self._inner = hashlib.new(digest, bytes([byte ^ 0x36 for byte in padded]))
        self._outer = hashlib.new(digest, bytes([byte ^ 0x5C for byte in padded]))

    def sign(self, content: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.digest()

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        expected = self.sign(content)
        for signature in signatures:  # noqa: SIM110 - any() would add a quarter to the time
            if hmac.compare_digest(expected, signature):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Hmac:
    """HMAC with a shared secret."""

    digest: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    secret_encoding: SecretDecoder = as_text

    def __post_init__(self) -> None:
        if self.digest not in _DIGESTS:
            raise ConfigurationError(
                f"the digest {self.digest!r} is not one of {', '.join(_DIGESTS)}"
            )

    @property
    def name(self) -> str:
        """The name, as shown in descriptions."""
        return f"HMAC-{self.digest.upper()}"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Parse a configured secret into keys. Raises ConfigurationError."""
        return tuple(_HmacKey(key, self.digest) for key in self._decoded(secret))

    def signer(self, secret: str | bytes) -> Signer:
        """Return a signer for the secret. Raises ConfigurationError."""
        return _HmacKey(self._decoded(secret)[0], self.digest).sign

    def _decoded(self, secret: str | bytes) -> tuple[bytes, ...]:
        text = shared_secret_bytes(secret)
        decoded = self.secret_encoding(text)
        keys = tuple(key for key in decoded if key == text or len(key) >= MIN_SECRET_BYTES)
        if not keys:  # anyone can sign with an empty key, and guess a short one
            raise ConfigurationError(
                f"decodes to {len(decoded[0])} bytes; the minimum is {MIN_SECRET_BYTES}"
            )
        return keys


def secret_bytes(secret: str | bytes | None) -> bytes:
    """Return a configured secret or key as bytes. Raises ConfigurationError."""
    if secret is None:
        raise ConfigurationError("is None; is its environment variable set?")
    if not isinstance(secret, str | bytes):
        raise ConfigurationError("is neither str nor bytes")
    try:
        key = secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise ConfigurationError("is not valid Unicode") from None
    if not key:
        raise ConfigurationError("is empty; is its environment variable set?")
    if is_key_document(key):
        return key
    if not key.strip():
        raise ConfigurationError("is blank")
    if key.strip(b"\r\n") != key:
        raise ConfigurationError("has a line break at its start or end")
    if key.startswith(BYTE_ORDER_MARK):
        raise ConfigurationError("begins with a byte order mark; remove it")
    return key


def is_key_document(text: bytes) -> bool:
    """Return whether a text contains a key in PEM, a JWK or a JWKS."""
    return b"-----BEGIN" in text or (b"{" in text and b'"kty"' in text)


def shared_secret_bytes(secret: str | bytes) -> bytes:
    """Return a shared secret as bytes. Raises ConfigurationError, also for a public key."""
    text = secret_bytes(secret)
    if is_key_document(text) or text.startswith(PUBLIC_KEY_PREFIXES):
        raise ConfigurationError("is a public key or a certificate; a shared secret is required")
    return text


@dataclass(frozen=True, slots=True)
class Asymmetric:
    """A key pair: the sender signs with the private key, the source has the public key."""

    name: str
    kind: str
    """The key of this algorithm in the tables of `public_keys` and `private_keys`."""

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Parse a public key, a certificate, a JWK or a JWKS. Raises ConfigurationError."""
        from onceward.sources.schemes import public_keys  # noqa: PLC0415 - few sources need it

        text = secret_bytes(secret).removeprefix(BYTE_ORDER_MARK).strip()
        return public_keys.load_public_keys(self.kind, text)

    def signer(self, secret: str | bytes) -> Signer:
        """Return a signer for a private key. Raises ConfigurationError."""
        from onceward.sources.schemes import private_keys  # noqa: PLC0415 - only senders need it

        text = secret_bytes(secret).removeprefix(BYTE_ORDER_MARK).strip()
        return private_keys.load_signer(self.kind, text)


ED25519: Final = Asymmetric("Ed25519", "ed25519")
ECDSA_P256: Final = Asymmetric("ECDSA on P-256", "p256")
RSA_SHA1: Final = Asymmetric("RSA with SHA-1", "rsa_sha1")
RSA_SHA256: Final = Asymmetric("RSA with SHA-256", "rsa_sha256")
