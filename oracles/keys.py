"""Generate secrets and key pairs in the formats that providers issue."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import cycle
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

PrivateKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Keys:
    """The key that signs and the key that verifies; equal for a shared secret."""

    private: str
    public: str


def _shared(secret: str) -> Keys:
    return Keys(secret, secret)


def plain_secret() -> Keys:
    """Return a secret whose text is the key."""
    return _shared(secrets.token_hex(32))


def hex_secret() -> Keys:
    """Return 32 bytes in hex."""
    return _shared(secrets.token_bytes(32).hex().upper())


def base64_secret() -> Keys:
    """Return 32 bytes in base64."""
    return _shared(base64.b64encode(secrets.token_bytes(32)).decode())


def whsec_secret() -> Keys:
    """Return 24 bytes in base64, after ``whsec_``."""
    return _shared(f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}")


def user_and_password() -> Keys:
    """Return ``user:password``."""
    return _shared(f"user-{secrets.token_hex(4)}:{secrets.token_hex(16)}")


def _pem(key: PrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def ed25519_hex() -> Keys:
    """Return an Ed25519 pair with the public key in hex."""
    key = ed25519.Ed25519PrivateKey.generate()
    return Keys(_pem(key), key.public_key().public_bytes_raw().hex())


def ed25519_base64() -> Keys:
    """Return an Ed25519 pair with the public key in base64."""
    key = ed25519.Ed25519PrivateKey.generate()
    return Keys(_pem(key), base64.b64encode(key.public_key().public_bytes_raw()).decode())


def p256_pem() -> Keys:
    """Return a P-256 pair in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return Keys(_pem(key), public.decode())


def p256_der() -> Keys:
    """Return a P-256 pair with the public key as base64 of DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Keys(_pem(key), base64.b64encode(public).decode())


def certificate() -> Keys:
    """Return an RSA key and its certificate: one of two pairs, as RSA keys are slow to generate."""
    return _certificate(next(_pair_numbers))


_pair_numbers: Final = cycle((1, 2))


@cache
def _certificate(_: int) -> Keys:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sender.example")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return Keys(_pem(key), signed.public_bytes(Encoding.PEM).decode())


def named_certificate() -> Keys:
    """Return a private key and its certificate, both after a webhook id."""
    pair = certificate()
    return Keys(f"WH-1AB23:{pair.private}", f"WH-1AB23:{pair.public}")
