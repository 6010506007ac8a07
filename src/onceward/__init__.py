"""Onceward: a webhook inbox. Each event is recorded once, and each effect happens once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from onceward.version import __version__

if TYPE_CHECKING:
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
    from onceward.sources.schemes import (
        ECDSA_P256,
        ED25519,
        RSA_SHA256,
        Hmac,
        Jwt,
        Signature,
        Token,
    )
    from onceward.standalone import Signed, Verified, sign, verify
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

_MODULES: Final = {
    "onceward.errors": (
        "ConfigurationError",
        "EffectNotApplied",
        "MalformedPayload",
        "OncewardError",
        "PermanentError",
        "RetryLater",
        "SignatureRejected",
    ),
    "onceward.inbox": ("Inbox",),
    "onceward.model.effects": ("Applied", "NotApplied", "StillUnknown"),
    "onceward.model.events": ("Event",),
    "onceward.model.retry": ("Retry",),
    "onceward.sources.presets": ("Preset",),
    "onceward.sources.schemes": (
        "ECDSA_P256",
        "ED25519",
        "RSA_SHA256",
        "Hmac",
        "Jwt",
        "Signature",
        "Token",
    ),
    "onceward.standalone": ("Signed", "Verified", "sign", "verify"),
    "onceward.work.running.effects": ("Effects",),
    "onceward.work.running.repeatable_writes": ("transition", "upsert"),
    "onceward.work.running.sync": ("SyncEffects", "SyncTransaction"),
    "onceward.work.running.transaction": ("Transaction",),
}
"""The exports of each module, which is imported when one of them is first used."""

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        """Import an export: an app that verifies signatures needs no store and no server."""
        for module, names in _MODULES.items():
            if name in names:
                globals()[name] = value = getattr(import_module(module), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
