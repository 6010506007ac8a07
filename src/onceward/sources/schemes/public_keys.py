"""Public keys: Ed25519, ECDSA on P-256, and RSA.

Imported only for sources with such a key, because `cryptography` takes ten megabytes of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from onceward.errors import ConfigurationError
from onceward.sources.schemes.encodings import decode_base64, decode_hex
from onceward.sources.schemes.jwk import parse_jwks
from onceward.sources.schemes.labelled_keys import LabelledKey
from onceward.sources.schemes.scheme import Key

MIN_RSA_BITS: Final = 2048
MAX_HASHED_BYTES: Final = 16 * 1024 * 1024
"""How many bytes are hashed for one key and request. Ed25519 hashes the content per signature."""
MIN_SIGNATURES_TRIED: Final = 2

Verifier = Callable[[bytes, bytes], None]
"""Takes a signature and a content; raises InvalidSignature or ValueError on a mismatch."""


class PublicKey:
    """A public key that verifies signatures."""

    __slots__ = ("_verifier",)

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        """Return whether the private key made one of the signatures over the content.

        Of a large content, only the first signatures are tried.
        """
        count = max(MIN_SIGNATURES_TRIED, MAX_HASHED_BYTES // (len(content) or 1))
        return any(self._is_valid(signature, content) for signature in signatures[:count])

    def _is_valid(self, signature: bytes, content: bytes) -> bool:
        try:
            self._verifier(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True


def _decoded(text: bytes) -> bytes:
    """Decode hexadecimal or base64. Return b"" if `text` is neither."""
    return decode_hex(text) or decode_base64(text) or b""


def _parse_text(kind: str, text: bytes) -> Any:
    """Load a public key from PEM, a PEM certificate, DER, or the raw bytes of an Ed25519 key."""
    if kind == "ed25519" and not text.startswith(b"-----BEGIN"):
        return _raw_ed25519_key(text)
    try:
        if b"CERTIFICATE" in text:
            return x509.load_pem_x509_certificate(text).public_key()
        if text.startswith(b"-----BEGIN"):
            return serialization.load_pem_public_key(text)
        return serialization.load_der_public_key(_decoded(text))
    except (ValueError, UnsupportedAlgorithm):
        message = "is not a public key or a certificate: PEM, base64-encoded DER, or a JWK"
        raise ConfigurationError(message) from None


def _raw_ed25519_key(text: bytes) -> ed25519.Ed25519PublicKey:
    try:
        return ed25519.Ed25519PublicKey.from_public_bytes(_decoded(text.removeprefix(b"whpk_")))
    except ValueError:
        message = "is not an Ed25519 public key: PEM, a JWK, or 32 bytes in hexadecimal or base64"
        raise ConfigurationError(message) from None


def _ed25519_verifier(key: Any) -> Verifier:
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise ConfigurationError("is not an Ed25519 public key")
    return key.verify


def _p256_verifier(key: Any) -> Verifier:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigurationError("is not a P-256 public key")
    return lambda signature, content: key.verify(signature, content, ec.ECDSA(hashes.SHA256()))


def _rsa_verifier(key: Any, digest: hashes.HashAlgorithm) -> Verifier:
    if not isinstance(key, rsa.RSAPublicKey):
        raise ConfigurationError("is not an RSA public key")
    if key.key_size < MIN_RSA_BITS:
        message = f"is an RSA key of {key.key_size} bits; the minimum is {MIN_RSA_BITS}"
        raise ConfigurationError(message)
    return lambda signature, content: key.verify(signature, content, padding.PKCS1v15(), digest)


_VERIFIERS: Final[dict[str, Callable[[Any], Verifier]]] = {
    "ed25519": _ed25519_verifier,
    "p256": _p256_verifier,
    "rsa_sha1": partial(_rsa_verifier, digest=hashes.SHA1()),  # noqa: S303 - Amazon SNS version 1
    "rsa_sha256": partial(_rsa_verifier, digest=hashes.SHA256()),
}


def load_public_keys(kind: str, text: bytes) -> tuple[Key, ...]:
    """Load the public keys of one kind from a text. Raises ConfigurationError."""
    make_verifier = _VERIFIERS[kind]
    if not text.startswith(b"{"):
        return (PublicKey(make_verifier(_parse_text(kind, text))),)
    return tuple(
        LabelledKey(PublicKey(make_verifier(key)), id=key_id)
        for key_id, key in parse_jwks(kind, text)
    )
