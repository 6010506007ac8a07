"""Signature schemes: how senders prove that a request is theirs.

A scheme is data. Verification reads no clock and raises only `SignatureRejected` and
`RepeatedHeader`.
"""

from onceward.sources.schemes.algorithms import ECDSA_P256, ED25519, RSA_SHA1, RSA_SHA256, Hmac
from onceward.sources.schemes.coverage import BodyCoverage, Coverage, UrlCoverage
from onceward.sources.schemes.jwt import Jwt
from onceward.sources.schemes.scheme import Key, Scheme
from onceward.sources.schemes.signature import Signature
from onceward.sources.schemes.tokens import Token

__all__ = [
    "ECDSA_P256",
    "ED25519",
    "RSA_SHA1",
    "RSA_SHA256",
    "BodyCoverage",
    "Coverage",
    "Hmac",
    "Jwt",
    "Key",
    "Scheme",
    "Signature",
    "Token",
    "UrlCoverage",
]
