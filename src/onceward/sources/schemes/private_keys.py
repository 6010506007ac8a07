"""Private keys: Ed25519, ECDSA on P-256, and RSA.

Imported only to sign requests; receiving needs no private key.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from onceward.errors import ConfigurationError
from onceward.sources.schemes.scheme import Signer

ED25519_BYTES: Final = 32


def _private_key(text: bytes, kind: type, name: str) -> Any:
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, kind):
        raise ConfigurationError(f"is not {name} in PEM without a password")
    return key


def _ed25519_signer(text: bytes) -> Signer:
    if text.startswith(b"-----BEGIN"):
        key = _private_key(text, ed25519.Ed25519PrivateKey, "an Ed25519 private key")
        return lambda content: bytes(key.sign(content))
    for decode in (binascii.unhexlify, base64.b64decode):
        try:
            # Some tools append the public key.
            seed = decode(text.removeprefix(b"whsk_"))[:ED25519_BYTES]
            return ed25519.Ed25519PrivateKey.from_private_bytes(seed).sign
        except ValueError:
            continue
    raise ConfigurationError(
        "is not an Ed25519 private key: PEM, or 32 bytes in hexadecimal or base64"
    )


def _p256_signer(text: bytes) -> Signer:
    key = _private_key(text, ec.EllipticCurvePrivateKey, "a P-256 private key")
    if not isinstance(key.curve, ec.SECP256R1):
        raise ConfigurationError("is not a P-256 private key")
    return lambda content: bytes(key.sign(content, ec.ECDSA(hashes.SHA256())))


def _rsa_signer(text: bytes, digest: hashes.HashAlgorithm) -> Signer:
    key = _private_key(text, rsa.RSAPrivateKey, "an RSA private key")
    return lambda content: bytes(key.sign(content, padding.PKCS1v15(), digest))


_SIGNERS: Final[dict[str, Callable[[bytes], Signer]]] = {
    "ed25519": _ed25519_signer,
    "p256": _p256_signer,
    "rsa_sha1": partial(_rsa_signer, digest=hashes.SHA1()),  # noqa: S303 - Amazon SNS version 1
    "rsa_sha256": partial(_rsa_signer, digest=hashes.SHA256()),
}


def load_signer(kind: str, text: bytes) -> Signer:
    """Load a private key of one kind and return its signer. Raises ConfigurationError."""
    return _SIGNERS[kind](text)
