"""The options of a handler for the order and the limits of its jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypedDict, get_args

from onceward.model.events import invalid_text_reason
from onceward.model.jobs import OnHeadFailed, QueueRules
from onceward.runtime.time_units import UNIT_SECONDS
from onceward.work.definition.payload_paths import path_faults

MAX_CONCURRENCY: Final = 1_000_000
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smhd])")
_SHORTEST_INTERVAL_SECONDS: Final = 1e-6
_LONGEST_INTERVAL_SECONDS: Final = 365 * 86_400.0
_RATE_ADVICE: Final = "use a text such as '10/s', '100/m', '2.5/h' or '1/d'"


class LimitOptions(TypedDict, total=False):
    """The limits of a handler's queue. `Inbox.on` documents them."""

    concurrency: int | None
    rate: str | None


class QueueOptions(LimitOptions, total=False):
    """The options of a handler's queue. `Inbox.on` documents them."""

    ordering_key: str | None
    on_head_failed: OnHeadFailed | None


def queue_faults(options: QueueOptions, *, transaction: object) -> Iterator[str]:
    """Yield a fault for each option that cannot work."""
    yield from _order_faults(options, transaction)
    concurrency: object = options.get("concurrency")
    if concurrency is not None and not _is_count(concurrency):
        yield f"concurrency is {concurrency!r}; use a whole number from 1 to {MAX_CONCURRENCY}"
    if (rate := options.get("rate")) is not None:
        yield from _rate_faults(rate)


def make_queue_rules(options: QueueOptions) -> QueueRules:
    """Return the rules of options that have no fault."""
    rate = options.get("rate")
    return QueueRules(
        ordering_key=options.get("ordering_key"),
        holds_key=options.get("on_head_failed") != "continue",
        concurrency=options.get("concurrency"),
        rate_interval_seconds=None if rate is None else _interval_seconds(rate),
    )


def rate_text(interval_seconds: float) -> str:
    """Return a rate as it is written for a handler, in the shortest unit that fits: ``100/m``."""
    for unit, seconds in UNIT_SECONDS.items():
        count = seconds / interval_seconds
        if round(count) >= 1 and abs(count - round(count)) < count * 1e-9:
            return f"{round(count)}/{unit}"
    return f"{60 / interval_seconds:.3g}/m"


def _order_faults(options: QueueOptions, transaction: object) -> Iterator[str]:
    path: object = options.get("ordering_key")
    on_head_failed: Any = options.get("on_head_failed")
    if path is not None:
        yield from path_faults("ordering_key", path)
    if path is not None and transaction == "shared":
        yield (
            "ordering_key does not work with transaction='shared': jobs with a key run one at a "
            "time, each in its own transaction; remove one of the two"
        )
    if on_head_failed is None:
        return
    if on_head_failed not in get_args(OnHeadFailed):
        yield f"on_head_failed is {on_head_failed!r}; use 'hold' or 'continue'"
    if path is None:
        yield "on_head_failed is only for handlers with ordering_key; add one, or remove it"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_CONCURRENCY


def _rate_faults(rate: object) -> Iterator[str]:
    if not isinstance(rate, str):
        yield f"rate is {rate!r}; {_RATE_ADVICE}"
    elif fault := invalid_text_reason(rate):
        yield f"rate {fault}; {_RATE_ADVICE}"
    elif not _RATE.fullmatch(rate):
        yield f"rate is {rate!r}; {_RATE_ADVICE}"
    elif not (_SHORTEST_INTERVAL_SECONDS <= _interval_seconds(rate) <= _LONGEST_INTERVAL_SECONDS):
        yield f"rate is {rate!r}; use a rate from one job in 365 days to 1000000/s"


def _interval_seconds(rate: str) -> float:
    """Return the time between two jobs, on average; 0 for a rate of 0."""
    number, _, unit = rate.partition("/")
    count = float(number)
    return UNIT_SECONDS[unit] / count if count else 0.0
