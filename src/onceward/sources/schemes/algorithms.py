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
from typing import Final, Literal, Protocol

from onceward.errors import ConfigurationError
from onceward.sources.schemes.scheme import Key

PUBLIC_KEY_PREFIXES: Final = (b"-----BEGIN", b"whpk_")
_DIGESTS: Final = ("sha1", "sha256", "sha384", "sha512")


Signer = Callable[[bytes], bytes]
"""Makes the signature over a content."""


class Algorithm(Protocol):
    """Makes keys of one kind."""

    @property
    def name(self) -> str:
        """What people call it."""

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The keys that a configured secret stands for. Raises ConfigurationError."""

    def signer(self, secret: str | bytes) -> Signer:
        """What signs with the sender's secret, or private key. Raises ConfigurationError."""


# How a secret is written. Each answers with the keys that it may stand for.

SecretDecoder = Callable[[bytes], tuple[bytes, ...]]


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
    text = secret.removeprefix(b"whsec_").rstrip(b"=")  # some leave the padding out
    try:
        return (base64.b64decode(text + b"=" * (-len(text) % 4), validate=True),)
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

    def sign(self, content: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.digest()

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        expected = self.sign(content)
        for signature in signatures:  # noqa: SIM110 - any() takes a fifth of the whole
            if hmac.compare_digest(expected, signature):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Hmac:
    """A secret that both sides have."""

    digest: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    secret_encoding: SecretDecoder = as_text

    def __post_init__(self) -> None:
        if self.digest not in _DIGESTS:
            raise ConfigurationError(f"the digest {self.digest!r} is none of {', '.join(_DIGESTS)}")

    @property
    def name(self) -> str:
        """What people call it."""
        return f"HMAC-{self.digest.upper()}"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The keys that a configured secret stands for. Raises ConfigurationError."""
        return tuple(_HmacKey(key, self.digest) for key in self._decoded(secret))

    def signer(self, secret: str | bytes) -> Signer:
        """What signs with the secret. Raises ConfigurationError."""
        return _HmacKey(self._decoded(secret)[0], self.digest).sign

    def _decoded(self, secret: str | bytes) -> tuple[bytes, ...]:
        text = secret_bytes(secret)
        if text.startswith(PUBLIC_KEY_PREFIXES):
            raise ConfigurationError("is a public key or a certificate; a shared secret is needed")
        keys = self.secret_encoding(text)
        if not all(keys):  # anyone can sign with an empty key
            raise ConfigurationError("is empty")
        return keys


def secret_bytes(secret: str | bytes) -> bytes:
    """A configured secret as bytes. Raises ConfigurationError where it cannot be one."""
    if not isinstance(secret, str | bytes):
        raise ConfigurationError("is neither a text nor bytes")
    try:
        key = secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise ConfigurationError("is not valid text") from None
    if not key:
        raise ConfigurationError("is empty")
    if key.strip(b"\r\n") != key and b"-----END" not in key:
        raise ConfigurationError("begins or ends with a line break")
    return key


@dataclass(frozen=True, slots=True)
class Asymmetric:
    """A public key here, a private one at the sender's."""

    name: str
    kind: str
    """The kind of key, as `public_keys` and `private_keys` name it."""

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The key that is configured. Raises ConfigurationError."""
        from onceward.sources.schemes import public_keys  # noqa: PLC0415 - few sources need it

        return (public_keys.load_public_key(self.kind, secret_bytes(secret)),)

    def signer(self, secret: str | bytes) -> Signer:
        """What signs with a private key. Raises ConfigurationError."""
        from onceward.sources.schemes import private_keys  # noqa: PLC0415 - only who sends needs it

        return private_keys.load_signer(self.kind, secret_bytes(secret))


ED25519: Final = Asymmetric("Ed25519", "ed25519")
ECDSA_P256: Final = Asymmetric("ECDSA on P-256", "p256")
RSA_SHA1: Final = Asymmetric("RSA with SHA-1", "rsa_sha1")
RSA_SHA256: Final = Asymmetric("RSA with SHA-256", "rsa_sha256")
