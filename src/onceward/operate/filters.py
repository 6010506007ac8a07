"""The filters of the admin lists: from query parameters to a PageQuery."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NoReturn

from onceward.errors import InvalidFilter, RejectionCause
from onceward.model.admin import PageQuery
from onceward.model.effects import EffectStatus
from onceward.model.events import Outcome, ProcessingState, invalid_text_reason
from onceward.model.jobs import JobStatus

DEFAULT_LIMIT: Final = 50


MAX_LIMIT: Final = 1000


ID_DIGITS: Final = len(str(2**63 - 1)) - 1
"""Any number of so many digits fits into the database."""


STATUSES: Final[Mapping[str, type[StrEnum] | None]] = {
    "events": ProcessingState,
    "jobs": JobStatus,
    "effects": EffectStatus,
    "deliveries": Outcome,
    "rejections": RejectionCause,
    "audit": None,
}


_STATUS_FILTERS: Final = {"rejections": "cause"}
"""What the status is called, where it has another name."""


_WITH_REFERENCE: Final = frozenset({"events", "effects"})


_WITHOUT_EVENT: Final = frozenset({"rejections"})


LISTS: Final = tuple(STATUSES)
"""What can be listed."""


def filters_of(kind: str) -> list[str]:
    """What a list can be filtered by."""
    names = ["limit", "after"]
    names += [] if kind in _WITHOUT_EVENT else ["event_id"]
    names += [status_filter(kind)] if STATUSES[kind] else []
    names += ["reference"] if kind in _WITH_REFERENCE else []
    names += ["duplicate_body"] if kind == "events" else []
    return names


def status_filter(kind: str) -> str:
    """What the status of a list is called."""
    return _STATUS_FILTERS.get(kind, "status")


def page_query(kind: str, parameters: Mapping[str, str]) -> PageQuery:
    """Read the filters of a list. Raises InvalidFilter, which names the filters there are."""
    names = filters_of(kind)
    for name in parameters:
        if name not in names:
            _reject(f"{kind} cannot be filtered by {name[:40]!r}; there are {', '.join(names)}")
    return PageQuery(
        limit=_limit(parameters.get("limit")),
        after=_after(parameters.get("after")),
        status=_status(kind, parameters.get(status_filter(kind))),
        event_id=_text("event_id", parameters.get("event_id")),
        reference=_text("reference", parameters.get("reference")),
        duplicate_body=_flag("duplicate_body", parameters.get("duplicate_body")),
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    number = parse_id(text)
    if number is None or not 1 <= number <= MAX_LIMIT:
        _reject(f"limit must be a whole number from 1 to {MAX_LIMIT}")
    return number


def _after(text: str | None) -> int | None:
    number = parse_id(text) if text is not None else None
    if text is not None and number is None:
        _reject("after must be the id of an item of this list")
    return number


def _status(kind: str, text: str | None) -> str | None:
    statuses = STATUSES[kind]
    if text is not None and statuses is not None and text not in list(statuses):
        _reject(f"{status_filter(kind)} must be one of {', '.join(statuses)}")
    return text


def _flag(name: str, text: str | None) -> bool:
    if text not in (None, "true"):
        _reject(f"{name} can only be true")
    return text is not None


def _text(name: str, text: str | None) -> str | None:
    fault = invalid_text_reason(text) if text is not None else None
    if fault:
        _reject(f"{name} {fault}")
    return text


def parse_id(text: str) -> int | None:
    """Read the id of a row; None when the text cannot be one."""
    is_id = text.isascii() and text.isdigit() and len(text) <= ID_DIGITS
    return int(text) if is_id else None


def _reject(message: str) -> NoReturn:
    raise InvalidFilter(message)
