"""Effects: actions that must happen once."""

from __future__ import annotations

from enum import StrEnum


class EffectStatus(StrEnum):
    """The state of an effect. `unknown`: a crash hid the outcome of the call."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
