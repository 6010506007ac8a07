"""Which errors may pass by themselves, and how long to wait for that."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from onceward.errors import PermanentError

_MAX_DOUBLINGS: Final = 60


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait between the attempts of a job."""

    base_seconds: float
    max_seconds: float


def backoff_seconds(
    attempt: int, base_seconds: float, max_seconds: float, random: Callable[[], float]
) -> float:
    """How long to wait after the given attempt, the first being 1.

    The wait doubles with each attempt up to `max_seconds`; what is returned lies between half of
    it and the whole, so that jobs that failed together do not come back together.
    """
    doublings = min(max(attempt - 1, 0), _MAX_DOUBLINGS)
    whole = min(math.ldexp(base_seconds, doublings), max_seconds)
    return whole * (0.5 + random() / 2)


def is_transient(error: BaseException) -> bool:
    """Whether running again may help: the one place where that is decided.

    A PermanentError, of any kind, is permanent, and so is a group that holds one. Everything else
    is transient: an error nobody foresaw is better tried once too often than given up too soon.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(PermanentError) is None
    return not isinstance(error, PermanentError)
