"""How an attempt ends: from what its handler raised to a settlement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from onceward.errors import RetryLater, StoreUnavailable
from onceward.model.jobs import Done, Fail, FailureType, Postpone, Retry, Settlement
from onceward.runtime.error_text import describe, leading_error
from onceward.work.retry import RetryPolicy, backoff_seconds, is_transient

LONGEST_DELAY_SECONDS: Final = 366 * 86_400.0


def settlement_of(
    error: Exception | None,
    *,
    attempts: int,
    max_attempts: int,
    policy: RetryPolicy,
    random: Callable[[], float],
    secrets: Iterable[str | bytes] = (),
) -> Settlement:
    """Decide how an attempt ends. `attempts` were used up before this one."""
    if error is None:
        return Done()
    text = describe(error, secrets)
    if isinstance(error, StoreUnavailable):
        return Postpone(backoff_seconds(1, policy.base_seconds, policy.max_seconds, random), text)
    if not is_transient(error):
        return Fail(FailureType.PERMANENT, text)
    attempt = attempts + 1
    if attempt >= max_attempts:
        return Fail(FailureType.EXHAUSTED, text)
    asked = _asked_seconds(leading_error(error))
    if asked is not None:
        return Retry(asked, text)
    delay = backoff_seconds(attempt, policy.base_seconds, policy.max_seconds, random)
    return Retry(delay, text)


def _asked_seconds(error: BaseException) -> float | None:
    """The delay a handler asked for, within bounds; None where it asked for none that is one."""
    if not isinstance(error, RetryLater) or not isinstance(error.seconds, int | float):
        return None
    seconds = float(min(max(error.seconds, 0), LONGEST_DELAY_SECONDS))
    return None if math.isnan(seconds) else seconds
