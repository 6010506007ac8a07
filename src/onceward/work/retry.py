"""Which errors are transient, and how long to wait before the next attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from onceward.errors import PermanentError

_MAX_DOUBLINGS: Final = 60


def backoff_seconds(
    attempt: int, base_seconds: float, max_seconds: float, random: Callable[[], float]
) -> float:
    """Return the delay after an attempt; the first attempt is number 1.

    The delay doubles with each attempt, up to `max_seconds`. Jitter takes off up to half of it, so
    that jobs that failed together are not retried together.
    """
    doublings = min(max(attempt - 1, 0), _MAX_DOUBLINGS)
    whole = min(math.ldexp(base_seconds, doublings), max_seconds)
    return whole * (0.5 + random() / 2)


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may help. All retry decisions go through this function.

    Any PermanentError is permanent, and so is a group that contains one. Every other error is
    transient: one retry too many costs less than one too few.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(PermanentError) is None
    return not isinstance(error, PermanentError)
