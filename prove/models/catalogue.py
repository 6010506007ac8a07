"""The modelled protocols: the sizes in which each is searched, and those that show its rules.

`short` and `long` are searched with all rules, and must hold. Each rule has the smallest model in
which its absence does harm, and each limit one in which it does: if the search finds no harm there,
the rule is not needed, or the limit is none.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from prove.models import effect_calls, giving_up, inline, reclaim, versions
from prove.models.effect_calls import Policy
from prove.models.search import Model
from prove.models.versions import Event


class Configuration(Protocol):
    """The size of a model, in words and as a state machine."""

    def __str__(self) -> str: ...

    def __hash__(self) -> int: ...

    def model(self, without: Collection[Any] = (), limits: Collection[Any] = (), /) -> Model[Any]:
        """Return the state machine, without some of its rules and with some limits."""


Shown = Mapping[StrEnum, Configuration]


@dataclass(frozen=True)
class ModelledProtocol:
    """A protocol, what its model checks, and in which sizes."""

    promises: str
    rules: Shown
    short: tuple[Configuration, ...]
    long: tuple[Configuration, ...]
    """Searched as well in the long form."""
    limits: Shown = field(default_factory=dict)

    def configurations(self, *, is_long: bool) -> tuple[Configuration, ...]:
        """Return the sizes that one form of the proof searches."""
        return (*self.short, *self.long) if is_long else self.short


def _calls(policy: Policy, max_time: int, max_calls: int, **size: int) -> Configuration:
    return effect_calls.Configuration(policy, max_time=max_time, max_calls=max_calls, **size)


def _effect_rules() -> Shown:
    rule = effect_calls.Rule
    first_call = _calls(Policy.PERSON, 0, 1)
    person, two_answers = _calls(Policy.PERSON, 1, 2), _calls(Policy.PERSON, 2, 3)
    reconcile, third_call = _calls(Policy.RECONCILE, 1, 2), _calls(Policy.RECONCILE, 1, 3)
    retry, second_retry = _calls(Policy.RETRY_SAFE, 1, 2), _calls(Policy.RETRY_SAFE, 2, 3)
    return {
        rule.INTENT_FIRST: first_call,
        rule.INTENT_IS_FENCED: first_call,
        rule.WITHDRAW_OWN_INTENT: third_call,
        rule.START_OVER_CLOSED: person,
        rule.START_IS_ATOMIC: _calls(Policy.PERSON, 0, 2, jobs=2),
        rule.PENDING_WAITS: reconcile,
        rule.UNKNOWN_WAITS: reconcile,
        rule.SEND_IN_TIME: reconcile,
        rule.DEADLINE_FROM_BEFORE: reconcile,
        rule.CLOCK_RUNS: reconcile,
        rule.EXCEPTION_IS_UNKNOWN: person,
        rule.UNKNOWN_OVER_PENDING: person,
        rule.OUTCOME_UNFENCED: first_call,
        rule.OUTCOME_BY_ITSELF: first_call,
        rule.SUCCESS_FROM_ANY_CALL: retry,
        rule.REFUSAL_FROM_LATEST: third_call,
        rule.REFUSAL_OVER_OPEN: retry,
        rule.REFUSAL_KEEPS_DOUBT: second_retry,
        rule.RECONCILE_IS_ATOMIC: _calls(Policy.RECONCILE, 1, 3, jobs=2),
        rule.RECONCILE_IS_FENCED: reconcile,
        rule.DEADLINE_IN_WINDOW: _calls(Policy.RETRY_SAFE, 3, 2, timeout=2, window=3),
        rule.WINDOW_FROM_FIRST: second_retry,
        rule.DONE_NEEDS_OUTCOME: first_call,
        rule.DONE_NEEDS_OUTCOME_OF_OTHERS: _calls(Policy.PERSON, 0, 1, jobs=2),
        rule.CANCEL_REVOKES: first_call,
        rule.CANCEL_KEEPS_DEADLINE: person,
        rule.CANCEL_KEEPS_NUMBER: reconcile,
        rule.ANSWER_AFTER_DEADLINE: person,
        rule.ANSWER_NAMES_CALL: two_answers,
    }


EFFECT_CALLS = ModelledProtocol(
    promises=(
        "an effect is applied at most once; a known success is stored and stays; no call starts "
        "for a job that is over; no job is done while the outcome of its call is unknown"
    ),
    rules=_effect_rules(),
    limits={
        effect_calls.Limit.FROZEN_BEFORE_SEND: _calls(Policy.RECONCILE, 1, 2),
        effect_calls.Limit.APPLIED_LATE: _calls(Policy.RECONCILE, 1, 2),
        effect_calls.Limit.KEY_FORGOTTEN: _calls(Policy.RETRY_SAFE, 1, 2),
        effect_calls.Limit.RECONCILE_LAGS: _calls(Policy.RECONCILE, 1, 2),
        effect_calls.Limit.PERSON_LOOKS_EARLY: _calls(Policy.PERSON, 1, 2),
    },
    short=(
        *(_calls(policy, 2, 3) for policy in Policy),
        _calls(Policy.RETRY_SAFE, 3, 2, timeout=2, window=3),
        _calls(Policy.RECONCILE, 1, 2, workers=3),
        _calls(Policy.RECONCILE, 1, 3, jobs=2),
    ),
    long=(
        *(_calls(policy, 3, 4) for policy in Policy),
        *(_calls(policy, 2, 3, jobs=2) for policy in Policy),
        *(_calls(policy, 2, 2, workers=3) for policy in Policy),
        _calls(Policy.RETRY_SAFE_OR_RECONCILE, 4, 3, timeout=2, window=3),
    ),
)

_ONE_REQUEST, _TWO_REQUESTS = inline.Configuration(1), inline.Configuration(2)

INLINE = ModelledProtocol(
    promises=(
        "an event is processed at most once; 200 means that it is done; done stays done; a "
        "cancelled event stays cancelled; a request that waits is bounded and holds no connection"
    ),
    rules={
        inline.Rule.COMMIT_IF_NOT_DONE: _TWO_REQUESTS,
        inline.Rule.COMMIT_IF_NOT_CANCELLED: _TWO_REQUESTS,
        inline.Rule.ONE_AT_A_TIME: _TWO_REQUESTS,
        inline.Rule.WAIT_WITHOUT_CONNECTION: _TWO_REQUESTS,
        inline.Rule.WAIT_IN_BOUNDS: _TWO_REQUESTS,
        inline.Rule.READ_UNDER_LOCK: _TWO_REQUESTS,
        inline.Rule.DONE_MEANS_DONE: _TWO_REQUESTS,
        inline.Rule.WAITERS_READ: _TWO_REQUESTS,
        inline.Rule.FAILURE_KEEPS_STATUS: _TWO_REQUESTS,
        inline.Rule.RESPOND_AFTER_COMMIT: _ONE_REQUEST,
        inline.Rule.UNKNOWN_IS_503: _ONE_REQUEST,
    },
    short=(inline.Configuration(2), inline.Configuration(3)),
    long=(inline.Configuration(4), inline.Configuration(4, connections=1)),
)

_IN_ORDER, _EQUAL = (Event(1, "a"), Event(2, "b")), (Event(1, "a"), Event(1, "b"))
_TWO_VERSIONS = versions.Versions(_IN_ORDER, has_calls=False)

VERSIONS = ModelledProtocol(
    promises=(
        "no older event overwrites a newer one; an event ends stale only if a newer one was "
        "applied; no outside call is made for a stale event; the calls of a key arrive in order"
    ),
    rules={
        versions.Rule.WATERMARK_IS_ATOMIC: _TWO_VERSIONS,
        versions.Rule.WATERMARK_IN_TRANSACTION: _TWO_VERSIONS,
        versions.Rule.WATERMARK_STAYS: _TWO_VERSIONS,
        versions.Rule.TIES_BY_EVENT_ID: versions.Versions(_EQUAL, has_calls=False),
        versions.Rule.STALE_IF_LESS: _TWO_VERSIONS,
        versions.Rule.CHECKED_AT_START: versions.Versions(_IN_ORDER),
        versions.Rule.KEY_WAITS_FOR_CALLS: versions.Key(2, max_time=1),
        versions.Rule.FAILED_HEAD_HOLDS: versions.Key(2, max_time=1),
    },
    limits={versions.Limit.OLDER_REQUEUED: versions.Key(2, max_time=1)},
    short=(
        versions.Versions(_IN_ORDER),
        versions.Versions(_EQUAL),
        versions.Versions((*_EQUAL, Event(2, "c")), has_calls=False),
        versions.Key(2, max_time=2),
    ),
    long=(
        versions.Versions((*_EQUAL, Event(2, "c"))),
        versions.Versions((*_IN_ORDER, Event(3, "c"))),
        versions.Key(2, max_time=4),
        versions.Key(3, max_time=3),
    ),
)

_IN_TIME, _LATE = reclaim.Session(), reclaim.Session(is_timely=False)

RECLAIM = ModelledProtocol(
    promises=(
        "a worker that lives keeps its jobs; a job that kills its process fails after a bounded "
        "number of kills; no other job is charged with an attempt"
    ),
    rules={
        reclaim.Rule.RECLAIM_UNDER_LOCK: _LATE,
        reclaim.Rule.GRACE: _IN_TIME,
        reclaim.Rule.MARK_IS_CLEARED: _IN_TIME,
        reclaim.Rule.NUMBER_IS_WITHDRAWN: _IN_TIME,
        reclaim.Rule.SESSION_IS_NOT_LENT: _IN_TIME,
        reclaim.Rule.COUNT_ONLY_THE_DEAD: _IN_TIME,
        reclaim.Rule.STARTED_ARE_MARKED: reclaim.Process(2, slots=1),
        reclaim.Rule.START_IN_ORDER: reclaim.Process(2, slots=1),
        reclaim.Rule.SOLO_IS_ALONE: reclaim.Process(2, slots=2),
        reclaim.Rule.CHARGE_ONLY_SOLO: reclaim.Process(2, slots=1),
    },
    limits={reclaim.Limit.KILLED_FROM_OUTSIDE: reclaim.Process(2, slots=1)},
    short=(_IN_TIME, _LATE, reclaim.Process(4, slots=1), reclaim.Process(4, slots=2)),
    long=(
        reclaim.Process(5, slots=2),
        reclaim.Process(5, slots=3),
        reclaim.Process(4, slots=2, max_attempts=4),
    ),
)

_ONE_WORKER = giving_up.Configuration()
_OLDER = giving_up.Configuration(requeues=1, has_older_version=True)

GIVING_UP = ModelledProtocol(
    promises=(
        "each failure has one committed run of on_failed, or a reason why it has none; a job that "
        "an operator queued runs its handler; deaths are bounded"
    ),
    rules={
        giving_up.Rule.COMMIT_TOGETHER: _ONE_WORKER,
        giving_up.Rule.END_IS_FENCED: giving_up.Configuration(workers=2, expiries=1),
        giving_up.Rule.LEFT_QUEUED: _ONE_WORKER,
        giving_up.Rule.SECOND_DEATH_FAILS: _ONE_WORKER,
        giving_up.Rule.MARK_IS_STORED: giving_up.Configuration(answers=1),
        giving_up.Rule.MARK_NEEDS_ATTEMPTS: _OLDER,
    },
    short=(
        giving_up.Configuration(workers=2, max_attempts=2, expiries=2, answers=1, requeues=1),
        giving_up.Configuration(2, 2, expiries=1, requeues=2, has_older_version=True),
    ),
    long=(
        giving_up.Configuration(3, 3, expiries=3, answers=2, requeues=2, has_older_version=True),
    ),
)

PROTOCOLS: Mapping[str, ModelledProtocol] = {
    "effect_calls": EFFECT_CALLS,
    "inline": INLINE,
    "versions": VERSIONS,
    "reclaim": RECLAIM,
    "giving_up": GIVING_UP,
}
