"""The settlement of attempts that raised an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from onceward.errors import RetryLater, StoreUnavailable
from onceward.model.jobs import Fail, FailureType, Postpone, Reschedule
from onceward.runtime.error_text import describe, leading_error
from onceward.work.retry import backoff_seconds, is_transient

MAX_DELAY_SECONDS: Final = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class SettlementPolicy:
    """Decides whether an attempt that raised is retried, postponed or failed."""

    base_seconds: float
    """The delay after the first attempt. Each further attempt doubles the delay."""
    max_seconds: float
    random: Callable[[], float]
    """Returns a number from 0 to 1, for the jitter."""
    secrets: Iterable[str | bytes] = ()
    """Secrets to redact in error texts. The owner may add more at any time."""

    def decide(
        self, error: Exception, *, attempts: int, max_attempts: int
    ) -> Reschedule | Postpone | Fail:
        """Return the settlement of an attempt that raised, after `attempts` earlier ones."""
        text = describe(error, self.secrets)
        if isinstance(error, StoreUnavailable):
            return Postpone(self._backoff(1), text)
        if not is_transient(error):
            return Fail(FailureType.PERMANENT, text)
        attempt = attempts + 1
        if attempt >= max_attempts:
            return Fail(FailureType.EXHAUSTED, text)
        delay = _requested_seconds(leading_error(error))
        return Reschedule(self._backoff(attempt) if delay is None else delay, text)

    def _backoff(self, attempt: int) -> float:
        return backoff_seconds(attempt, self.base_seconds, self.max_seconds, self.random)


def _requested_seconds(error: BaseException) -> float | None:
    """Return the delay that the handler asked for, within bounds, or None without a usable one."""
    if not isinstance(error, RetryLater) or not isinstance(error.seconds, int | float):
        return None
    seconds = float(min(max(error.seconds, 0), MAX_DELAY_SECONDS))
    return None if math.isnan(seconds) else seconds
