"""Retry rules: how long a job waits after an error, and which errors are not retried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from onceward.errors import ConfigurationError, PermanentError, RetryLater, StoreUnavailable

MAX_DELAY_SECONDS: Final = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Retry:
    """A delay that doubles with each attempt, from `base_seconds` up to `max_seconds`.

    None means the setting, `retry_base_seconds` or `retry_max_seconds`. ``Retry(60, 60)`` is a
    constant delay. The number of attempts is `max_attempts`.
    """

    base_seconds: float | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for delays that cannot work."""
        delays = {"base_seconds": self.base_seconds, "max_seconds": self.max_seconds}
        faults = [
            f"{name} is {_shown(seconds)}; write a number above 0, at most 366 days"
            for name, seconds in delays.items()
            if seconds is not None and not _is_delay(seconds)
        ]
        if not faults and None not in delays.values():
            faults += _order_faults(*self.delays(0, 0))
        if faults:
            raise ConfigurationError([f"Retry: {fault}" for fault in faults])

    def delays(self, base_seconds: float, max_seconds: float) -> tuple[float, float]:
        """Return the first and the longest delay, with defaults for those that are left open."""
        return (
            base_seconds if self.base_seconds is None else self.base_seconds,
            max_seconds if self.max_seconds is None else self.max_seconds,
        )


RetryOption = Retry | Mapping[type[Exception], Retry | None]
"""The option ``retry=``: a rule for all errors, or one for each class of errors."""

RetryRules = Mapping[type[Exception], Retry | None]
"""The option as a mapping. None means that a retry cannot help."""

NO_RULES: Final[RetryRules] = MappingProxyType({})

_FORM: Final = (
    "write retry=Retry(60, 3600) or retry={ConnectionError: Retry(60, 60), KeyError: None}"
)
_WITHOUT_EFFECT: Final[Mapping[type[BaseException], str]] = {
    PermanentError: "it always fails the job at once",
    RetryLater: "it sets its own delay",
    StoreUnavailable: "it never counts as an attempt",
    BaseExceptionGroup: "the first error of a group decides; name the class of that error",
}


def make_retry_rules(option: RetryOption | None) -> RetryRules:
    """Return the rules of an option ``retry=``. Raise ConfigurationError with every fault."""
    if faults := list(retry_faults(option)):
        raise ConfigurationError(faults)
    if option is None:
        return NO_RULES
    rules = {Exception: option} if isinstance(option, Retry) else option
    return MappingProxyType(dict(rules))


def retry_faults(option: object) -> Iterator[str]:
    """Yield the faults of an option ``retry=``."""
    if isinstance(option, Mapping):
        for kind, rule in option.items():
            yield from _entry_faults(kind, rule)
    elif option is not None and not isinstance(option, Retry):
        yield f"retry is {_shown(option)}; {_FORM}"


def default_faults(rules: RetryRules, base_seconds: float, max_seconds: float) -> Iterator[str]:
    """Yield the rules that cannot work with these defaults, which come from the settings."""
    for rule in rules.values():
        base, longest = (rule or Retry()).delays(base_seconds, max_seconds)
        if base <= longest:
            continue
        if base == base_seconds:
            fault = f"max_seconds={longest:g}) is below the setting retry_base_seconds, {base:g}"
            both = f"Retry({longest:g}, {longest:g})"
        else:
            fault = f"base_seconds={base:g}) is above the setting retry_max_seconds, {longest:g}"
            both = f"Retry({base:g}, {base:g})"
        yield f"Retry({fault}; pass both, for example {both}"


def _entry_faults(kind: object, rule: object) -> Iterator[str]:
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        yield f"retry: {_shown(kind)} is not a subclass of Exception; {_FORM}"
        return
    for special, reason in _WITHOUT_EFFECT.items():
        if issubclass(kind, special):
            yield f"retry: a rule for {kind.__name__} has no effect: {reason}"
    if rule is not None and not isinstance(rule, Retry):
        yield (
            f"retry: the rule for {kind.__name__} is {_shown(rule)}; "
            "write Retry(60, 3600), or None if a retry cannot help"
        )


def _order_faults(base_seconds: float, max_seconds: float) -> Iterator[str]:
    if base_seconds > max_seconds:
        yield (
            f"base_seconds is {base_seconds:g}, more than max_seconds, {max_seconds:g}; "
            f"for a constant delay write Retry({base_seconds:g}, {base_seconds:g})"
        )


def _is_delay(seconds: object) -> bool:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return False
    return 0 < seconds <= MAX_DELAY_SECONDS


def _shown(value: object) -> str:
    return repr(value)[:60]
