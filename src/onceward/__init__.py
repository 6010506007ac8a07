"""Onceward: a webhook inbox. Each event is recorded once, and each effect happens once."""

from onceward.bridge import SyncEffects, SyncTransaction
from onceward.effect import Effects
from onceward.errors import (
    ConfigurationError,
    MalformedPayload,
    OncewardError,
    PermanentError,
    RetryLater,
    SignatureRejected,
)
from onceward.inbox import Inbox
from onceward.model import Event
from onceward.providers import Preset
from onceward.schemes import ECDSA_P256, ED25519, RSA_SHA256, Hmac, Jwt, Signature, Token
from onceward.sign import Signed
from onceward.sign import sign_request as sign
from onceward.transaction import Transaction
from onceward.verify import Verified
from onceward.verify import verify_request as verify
from onceward.version import __version__

__all__ = [
    "ECDSA_P256",
    "ED25519",
    "RSA_SHA256",
    "ConfigurationError",
    "Effects",
    "Event",
    "Hmac",
    "Inbox",
    "Jwt",
    "MalformedPayload",
    "OncewardError",
    "PermanentError",
    "Preset",
    "RetryLater",
    "Signature",
    "SignatureRejected",
    "Signed",
    "SyncEffects",
    "SyncTransaction",
    "Token",
    "Transaction",
    "Verified",
    "__version__",
    "sign",
    "verify",
]
