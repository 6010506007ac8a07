"""A key pair or shared secret for every scheme."""

import base64
from functools import cache
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from onceward.errors import ConfigurationError
from onceward.sources.presets import PRESETS
from onceward.sources.schemes import Scheme


class Pair(NamedTuple):
    """The key that signs and the key that verifies; equal for a shared secret."""

    private: str
    public: str


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return Pair(private.decode(), public.decode())


@cache
def rsa_pair(number: int = 0) -> Pair:
    return _pem(rsa.generate_private_key(65537, 2048))


@cache
def p256_pair(number: int = 0) -> Pair:
    return _pem(ec.generate_private_key(ec.SECP256R1()))


@cache
def ed25519_pair(number: int = 0) -> Pair:
    key = ed25519.Ed25519PrivateKey.generate()
    return Pair(_pem(key).private, key.public_key().public_bytes_raw().hex())


def shared(text: str) -> Pair:
    return Pair(text, text)


HEX = "5f1c" * 16
BASE64 = base64.b64encode(b"a key of twenty-eight bytes.").decode()
EMAIL = "push@project.iam.example"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:orders"
SPECIAL_PAIRS = {
    "paypal": lambda: Pair(f"WH-1:{rsa_pair().private}", f"WH-1:{rsa_pair().public}"),
    "braintree": lambda: shared("the_public_key:the_private_key"),
    "postmark": lambda: shared("user:the-password"),
    "adyen": lambda: shared(HEX),
    "aws-sns": lambda: Pair(f"{TOPIC}:{rsa_pair().private}", f"{TOPIC}:{rsa_pair().public}"),
    "livekit": lambda: shared("the_api_key:a-secret-of-livekit"),
    "sinch": lambda: shared(BASE64),
}


def pair_for(preset: str, scheme: Scheme) -> Pair:
    """Return a pair that a scheme of the preset accepts."""
    if preset in SPECIAL_PAIRS:
        return SPECIAL_PAIRS[preset]()
    google = Pair(f"{EMAIL}:{rsa_pair().private}", f"{EMAIL}:{rsa_pair().public}")
    for pair in (shared(f"whsec_{BASE64}"), ed25519_pair(), p256_pair(), rsa_pair(), google):
        try:
            scheme.keys(pair.public)
        except ConfigurationError:
            continue
        return pair
    raise AssertionError(f"no secret fits {preset}")


def other_secret(preset: str, scheme: Scheme) -> str:
    """Return a secret or public key of the same kind that did not sign."""
    pair = pair_for(preset, scheme)
    if pair.private == pair.public:
        last = "1" if pair.public[-7] != "1" else "2"
        return pair.public[:-7] + last + pair.public[-6:]
    for make in (rsa_pair, p256_pair, ed25519_pair):
        if pair.public.endswith(make().public):
            return pair.public.removesuffix(make().public) + make(1).public
    raise AssertionError(f"no other key fits {preset}")


SCHEMES = [
    (preset, name, scheme)
    for preset in PRESETS.values()
    for name, scheme in preset.named_schemes.items()
]
