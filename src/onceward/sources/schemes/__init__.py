"""How senders prove that a request is their own. Schemes are data, applied by one function each.

Nothing here reads a clock, and nothing raises anything but `SignatureRejected`, and
`RepeatedHeader` for a header that decides and stands in the request twice.
"""

from onceward.sources.schemes.algorithms import ECDSA_P256, ED25519, RSA_SHA1, RSA_SHA256, Hmac
from onceward.sources.schemes.jwt import Jwt
from onceward.sources.schemes.scheme import Key, Scheme
from onceward.sources.schemes.signature import Signature
from onceward.sources.schemes.tokens import Token

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
]
