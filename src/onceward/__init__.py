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
from onceward.transaction import Transaction
from onceward.version import __version__

__all__ = [
    "ConfigurationError",
    "Effects",
    "Event",
    "Inbox",
    "MalformedPayload",
    "OncewardError",
    "PermanentError",
    "RetryLater",
    "SignatureRejected",
    "SyncEffects",
    "SyncTransaction",
    "Transaction",
    "__version__",
]
