"""The settlement of attempts that raised an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onceward.errors import (
    ConnectionLost,
    EffectPending,
    EffectUnknown,
    OutcomeUnknown,
    RetryLater,
    StoreUnavailable,
)
from onceward.model.jobs import Fail, FailureType, Postpone, Reschedule
from onceward.model.retry import MAX_DELAY_SECONDS, NO_RULES, Retry, RetryRules
from onceward.runtime.error_text import describe, leading_error
from onceward.work.settling.retry import backoff_seconds, choose_rule, is_transient

MAX_FREE_LOSSES: Final = 3
"""Lost connections in a row that count no attempt. A handler may be what ends its connection."""

_OUTAGES: Final = (StoreUnavailable, OutcomeUnknown)
_NOT_LATER: Final = "the seconds of RetryLater are not above 0, so the usual delay applies"


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
    show_values: bool = False
    """Whether error texts show the values that the interpreter or a database quotes."""
    handler_rules: Mapping[str, RetryRules] = field(default_factory=dict)
    """The retry rules of each handler, by its name. They win over the source's."""
    source_rules: Mapping[str, RetryRules] = field(default_factory=dict)
    """The retry rules of each source, by its name. They win over the settings."""

    def decide(
        self,
        error: BaseException,
        *,
        attempts: int,
        max_attempts: int,
        handler: str = "",
        source: str = "",
        connection_losses: int = 0,
    ) -> Reschedule | Postpone | Fail:
        """Return the settlement of an attempt that raised, after `attempts` earlier ones.

        `connection_losses` is the number of runs in a row that lost their connection.
        """
        text = describe(error, self.secrets, show_values=self.show_values)
        leading = leading_error(error)
        if isinstance(leading, EffectPending):
            return Postpone(leading.seconds, text, is_outage=False)
        if isinstance(leading, _OUTAGES) and connection_losses <= MAX_FREE_LOSSES:
            return Postpone(self._backoff(1, Retry()), text)
        rule = self._rule(leading, handler, source)
        if rule is None or not is_transient(error):
            return _failure(leading, text, FailureType.PERMANENT)
        attempt = attempts + 1
        if attempt >= max_attempts or _needs_operator(leading):
            return _failure(leading, text, FailureType.EXHAUSTED)
        if isinstance(leading, RetryLater):
            seconds = requested_seconds(leading)
            if seconds > 0:  # NaN is not
                return Reschedule(seconds, text)
            text += f"; {_NOT_LATER}"
        return Reschedule(self._backoff(attempt, rule), text)

    def _rule(self, error: BaseException, handler: str, source: str) -> Retry | None:
        """Return the rule for an error; None if a retry cannot help."""
        if isinstance(error, RetryLater):
            return Retry()
        return choose_rule(
            error,
            self.handler_rules.get(handler, NO_RULES),
            self.source_rules.get(source, NO_RULES),
        )

    def _backoff(self, attempt: int, rule: Retry) -> float:
        base_seconds, max_seconds = rule.delays(self.base_seconds, self.max_seconds)
        return backoff_seconds(attempt, base_seconds, max_seconds, self.random)


def _needs_operator(error: BaseException) -> bool:
    return isinstance(error, EffectUnknown) and error.needs_operator


def _failure(error: BaseException, text: str, failure_type: FailureType) -> Fail:
    """Return the failure of a job. An unknown outcome is its reason in any case."""
    if isinstance(error, EffectUnknown):
        text += f"; resolve it: POST /admin/effects/{error.effect}/resolve"
        return Fail(FailureType.UNKNOWN_OUTCOME, text, effect=error.effect)
    return Fail(failure_type, text)


def requested_seconds(error: RetryLater) -> float:
    """Return the delay that the handler asked for, within bounds; NaN without a number."""
    seconds: object = error.seconds
    if isinstance(seconds, int | float):
        return float(min(max(seconds, 0), MAX_DELAY_SECONDS))
    return math.nan


def is_connection_loss(error: BaseException) -> bool:
    """Return whether a run lost its connection after it had begun its transaction."""
    return isinstance(leading_error(error), ConnectionLost | OutcomeUnknown)
