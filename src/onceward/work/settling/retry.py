"""Retry decisions: transient errors, the rule for an error, the delay before the next attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from onceward.errors import PermanentError
from onceward.model.retry import Retry, RetryRules
from onceward.runtime.error_text import leading_path

_MAX_DOUBLINGS: Final = 60


def backoff_seconds(
    attempt: int, base_seconds: float, max_seconds: float, random: Callable[[], float]
) -> float:
    """Return the delay after an attempt; the first attempt is number 1.

    The delay doubles with each attempt, up to `max_seconds`. Jitter takes off up to half of it, so
    that jobs that failed together are not retried together, but at most a tenth of `max_seconds`:
    the attempts must last for a day even if the jitter always takes off the most.
    """
    doublings = min(max(attempt - 1, 0), _MAX_DOUBLINGS)
    whole = min(math.ldexp(base_seconds, doublings), max_seconds)
    return whole - random() * min(whole / 2, max_seconds / 10)


def choose_rule(error: BaseException, *layers: RetryRules) -> Retry | None:
    """Return the rule of the first layer that has one for the error, else the settings' rule.

    Within a layer the most specific class of the error wins.
    """
    for rules in layers:
        for kind in type(error).__mro__:
            if kind in rules:
                return rules[kind]
    return Retry()


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may help. All retry decisions go through this function.

    Any PermanentError is permanent, and so is a group that contains one. Every other error is
    transient: one retry too many costs less than one too few.
    """
    return not any(isinstance(part, PermanentError) for part in leading_path(error))
