"""Effects: things that must happen once."""

from __future__ import annotations

from enum import StrEnum


class EffectStatus(StrEnum):
    """Where an effect stands."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
