"""Onceward: a webhook inbox. Each event is recorded once, and each effect happens once."""

from onceward.errors import (
    ConfigurationError,
    EffectNotApplied,
    MalformedPayload,
    OncewardError,
    PermanentError,
    RetryLater,
    SignatureRejected,
)
from onceward.inbox import Inbox
from onceward.model.effects import Applied, NotApplied, StillUnknown
from onceward.model.events import Event
from onceward.model.retry import Retry
from onceward.sources.presets import Preset
from onceward.sources.schemes import ECDSA_P256, ED25519, RSA_SHA256, Hmac, Jwt, Signature, Token
from onceward.standalone import Signed, Verified, sign, verify
from onceward.version import __version__
from onceward.work.running.effects import Effects
from onceward.work.running.repeatable_writes import transition, upsert
from onceward.work.running.sync import SyncEffects, SyncTransaction
from onceward.work.running.transaction import Transaction

__all__ = [
    "ECDSA_P256",
    "ED25519",
    "RSA_SHA256",
    "Applied",
    "ConfigurationError",
    "EffectNotApplied",
    "Effects",
    "Event",
    "Hmac",
    "Inbox",
    "Jwt",
    "MalformedPayload",
    "NotApplied",
    "OncewardError",
    "PermanentError",
    "Preset",
    "Retry",
    "RetryLater",
    "Signature",
    "SignatureRejected",
    "Signed",
    "StillUnknown",
    "SyncEffects",
    "SyncTransaction",
    "Token",
    "Transaction",
    "Verified",
    "__version__",
    "sign",
    "transition",
    "upsert",
    "verify",
]
