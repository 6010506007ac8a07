"""The filters of the admin lists: from query parameters to a PageQuery."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NoReturn

from onceward.errors import InvalidFilter, RejectionCause
from onceward.model.admin import PageQuery
from onceward.model.effects import EffectStatus
from onceward.model.events import Outcome, ProcessingState, invalid_text_reason, storable_key
from onceward.model.jobs import FailureType, JobStatus

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000
ID_DIGITS: Final = len(str(2**63 - 1)) - 1
"""Every number of at most this many digits fits the database's integer."""

_PAGE: Final = ("limit", "after")
FILTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "events": (*_PAGE, "source", "handler", "event_id", "status", "reference", "duplicate_body"),
    "jobs": (
        *(*_PAGE, "source", "handler", "event_id", "status", "failure_type", "ordering_key"),
        "effect_id",
    ),
    "effects": (*_PAGE, "source", "handler", "event_id", "status", "reference"),
    "deliveries": (*_PAGE, "source", "event_id", "status"),
    "rejections": (*_PAGE, "source", "cause"),
    "audit": (*_PAGE, "event_id", "subject"),
    "watermarks": (*_PAGE, "handler", "key", "event_id"),
    "handlers": _PAGE,
    "sources": _PAGE,
}
"""The query parameters of each list."""

LISTS: Final = tuple(FILTERS)

STATUSES: Final[Mapping[str, type[StrEnum]]] = {
    "events": ProcessingState,
    "jobs": JobStatus,
    "effects": EffectStatus,
    "deliveries": Outcome,
    "rejections": RejectionCause,
}
"""The values of `status`, or `cause`, in each list that has it."""


def page_query(kind: str, parameters: Mapping[str, str]) -> PageQuery:
    """Return the query for one page of the list `kind`. Raises InvalidFilter."""
    filters = FILTERS[kind]
    for name in parameters:
        if name not in filters:
            _reject(f"{kind} cannot be filtered by {name[:40]!r}. Use {', '.join(filters)}.")
    status_filter = "cause" if "cause" in filters else "status"
    return PageQuery(
        limit=_limit(parameters.get("limit")),
        after=_after(parameters.get("after")),
        status=_status(kind, status_filter, parameters.get(status_filter)),
        source=_text("source", parameters.get("source")),
        handler=_text("handler", parameters.get("handler")),
        event_id=_text("event_id", parameters.get("event_id")),
        reference=_text("reference", parameters.get("reference")),
        ordering_key=_text("ordering_key", parameters.get("ordering_key")),
        subject=_text("subject", parameters.get("subject")),
        failure_type=_failure_type(parameters.get("failure_type")),
        key=_key(parameters.get("key")),
        effect_id=_row_id("effect_id", parameters.get("effect_id")),
        duplicate_body=_flag("duplicate_body", parameters.get("duplicate_body")),
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    number = parse_id(text)
    if number is None or not 1 <= number <= MAX_LIMIT:
        _reject(f"limit must be a whole number from 1 to {MAX_LIMIT}.")
    return number


def _after(text: str | None) -> int | None:
    if text is None:
        return None
    number = parse_id(text)
    if number is None:
        _reject("after must be the `next` of another page of this list.")
    return number


def _row_id(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    number = parse_id(text)
    if number is None:
        _reject(f"{name} must be the id of a row, such as 7.")
    return number


def _status(kind: str, name: str, text: str | None) -> str | None:
    if text is not None and text not in list(STATUSES[kind]):
        _reject(f"{name} must be one of {', '.join(STATUSES[kind])}.")
    return text


def _text(name: str, text: str | None) -> str | None:
    fault = invalid_text_reason(text) if text is not None else None
    if fault:
        _reject(f"{name} {fault}. Send a valid value.")
    return text


def _failure_type(text: str | None) -> str | None:
    if text is not None and text not in list(FailureType):
        _reject(f"failure_type must be one of {', '.join(FailureType)}.")
    return text


def _key(text: str | None) -> str | None:
    """Return a version key as it is stored. A long one is sent as the payload has it."""
    return None if text is None else storable_key(text)


def _flag(name: str, text: str | None) -> bool:
    if text not in (None, "true"):
        _reject(f"{name} must be true or left out.")
    return text is not None


def parse_id(text: str) -> int | None:
    """Return the row id that `text` spells, or None if it cannot be one."""
    is_id = text.isascii() and text.isdigit() and len(text) <= ID_DIGITS
    return int(text) if is_id else None


def _reject(message: str) -> NoReturn:
    raise InvalidFilter(message)
