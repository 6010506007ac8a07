"""How senders prove that a request is their own. Schemes are data, applied by one function each.

Nothing here reads a clock, and nothing raises anything but `SignatureRejected`, and
`RequestRefused` for a header that decides and stands in the request twice.
"""

from onceward.schemes.algorithms import ECDSA_P256, ED25519, RSA_SHA1, RSA_SHA256, Hmac
from onceward.schemes.interface import Key, Scheme, verify
from onceward.schemes.jwt import Jwt
from onceward.schemes.signature import Signature
from onceward.schemes.tokens import Token

__all__ = [
    "ECDSA_P256",
    "ED25519",
    "RSA_SHA1",
    "RSA_SHA256",
    "Hmac",
    "Jwt",
    "Key",
    "Scheme",
    "Signature",
    "Token",
    "verify",
]
