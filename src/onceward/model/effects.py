"""Effects: actions that must happen once."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

MAX_RESULT_BYTES: Final = 64 * 1024
"""The limit for the stored result of an effect, as JSON."""

RESERVED_PREFIX: Final = "onceward:"
"""The beginning of the keys of Onceward's own effects. A handler, or a sender whose data is in its
keys, could otherwise take the key of an event that is to be forwarded."""


class EffectStatus(StrEnum):
    """The state of an effect.

    `pending`: a call may be under way until its deadline. `failed`: the effect was certainly not
    applied. `unknown`: nobody knows whether the last call was applied.
    """

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Applied(msgspec.Struct, frozen=True):
    """The answer of a reconcile function: the effect was applied, with this result."""

    result: Any = None


class NotApplied(msgspec.Struct, frozen=True):
    """The answer of a reconcile function: the effect was not applied, so it may be called again."""


class StillUnknown(msgspec.Struct, frozen=True):
    """The answer of a reconcile function: the other side cannot tell yet. Ask again later."""


class CallIntent(msgspec.Struct, frozen=True):
    """An outside call that a worker is about to make for a leased job."""

    token: str
    job: int
    key: str
    reference: str | None
    function: str
    timeout_seconds: float
    nonce: str
    """A text that no other call has, to withdraw an intent whose commit was not confirmed."""


class EffectCall(msgspec.Struct, frozen=True):
    """The last call of an effect, as the ledger has it."""

    id: int
    call_no: int
    status: EffectStatus
    function: str | None
    """The name of the function; None for a mark of `effects.once`."""
    seconds_left: float
    """The time until the deadline of the call, on the clock of the database."""
    seconds_since_first: float
    """The time since the first call of the effect."""
    result: str | None
    """The JSON text of the result, once the effect has succeeded."""
    error_message: str | None


def key_in_use(key: str, function: str | None, wanted: str) -> str:
    """Return why `wanted` cannot use a key: a function, or `effects.once` if None, has used it."""
    owner = "effects.once" if function is None else f"the function {function}"
    return (
        f"effect {key!r}: {owner} has used this key; a key stands for one effect: use another "
        f"for {wanted}"
    )


def reserved_key_fault(key: str) -> str | None:
    """Return why a handler cannot use a key that is reserved; None if it is not."""
    if not key.startswith(RESERVED_PREFIX):
        return None
    return f"keys that begin with {RESERVED_PREFIX} are reserved for Onceward; use another one"


class ResolvedOutcome(StrEnum):
    """A person's answer to whether an effect happened."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"


class Resolution(msgspec.Struct, frozen=True):
    """A person's answer about an effect."""

    outcome: ResolvedOutcome
    call_no: int | None = None
    """The call that the person looked at. An answer that it did not happen must name it."""
    result: str | None = None
    """The JSON text of the result, if the effect happened."""
