"""What operators do: look, and requeue, each act with its audit entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NoReturn

from onceward.errors import NotFound, NotInState, RequestRefused
from onceward.model import (
    REQUEUEABLE,
    Act,
    EffectStatus,
    JobStatus,
    Outcome,
    PageQuery,
    ProcessingState,
    Requeued,
    text_fault,
)
from onceward.ports import Desk

DEFAULT_LIMIT: Final = 50
LARGEST_LIMIT: Final = 1000
ID_DIGITS: Final = len(str(2**63 - 1)) - 1
"""Any number of so many digits fits into the database."""

STATUSES: Final[Mapping[str, type[StrEnum] | None]] = {
    "events": ProcessingState,
    "jobs": JobStatus,
    "effects": EffectStatus,
    "deliveries": Outcome,
    "audit": None,
}
_WITH_REFERENCE: Final = frozenset({"events", "effects"})

LISTS: Final = tuple(STATUSES)
"""What can be listed."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, newest first. `next` is the `after` of the part that follows."""

    items: list[Any]
    limit: int
    next: str | None


class Operator:
    """Looks and acts for a person."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def page(self, kind: str, parameters: Mapping[str, str]) -> Page:
        """A part of a list. Raises RequestRefused (422) for a filter that is none."""
        query = page_query(kind, parameters)
        items: list[Any] = await getattr(self._desk, kind)(query)
        more = len(items) == query.limit
        return Page(items, query.limit, items[-1].id if items and more else None)

    async def requeue(self, job: str, act: Act) -> Requeued:
        """Queue a failed or cancelled job again. Raises NotFound or NotInState."""
        number = _id(job)
        requeued = await self._desk.requeue(number, act) if number is not None else None
        if requeued is not None:
            return requeued
        status = await self._desk.job_status(number) if number is not None else None
        if status is None:
            message = f"There is no job {job[:40]}."
            raise NotFound(message)
        message = f"Job {job} is {status}; only {' or '.join(sorted(REQUEUEABLE))} can be requeued."
        raise NotInState(message)


def filters_of(kind: str) -> list[str]:
    """What a list can be filtered by."""
    known = ["limit", "after", "event_id"]
    known += ["status"] if STATUSES[kind] else []
    known += ["reference"] if kind in _WITH_REFERENCE else []
    return known


def page_query(kind: str, parameters: Mapping[str, str]) -> PageQuery:
    """Read the filters of a list. Raises RequestRefused (422), naming what can be asked for."""
    known = filters_of(kind)
    for name in parameters:
        if name not in known:
            _refuse(f"{kind} cannot be filtered by {name[:40]!r}; there are {', '.join(known)}")
    return PageQuery(
        limit=_limit(parameters.get("limit")),
        after=_after(parameters.get("after")),
        status=_status(kind, parameters.get("status")),
        event_id=_storable("event_id", parameters.get("event_id")),
        reference=_storable("reference", parameters.get("reference")),
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    number = _id(text)
    if number is None or not 1 <= number <= LARGEST_LIMIT:
        _refuse(f"limit must be a whole number from 1 to {LARGEST_LIMIT}")
    return number


def _after(text: str | None) -> int | None:
    number = _id(text) if text is not None else None
    if text is not None and number is None:
        _refuse("after must be the id of an item of this list")
    return number


def _status(kind: str, text: str | None) -> str | None:
    statuses = STATUSES[kind]
    if text is not None and statuses is not None and text not in list(statuses):
        _refuse(f"status must be one of {', '.join(statuses)}")
    return text


def _storable(name: str, text: str | None) -> str | None:
    fault = text_fault(text) if text is not None else None
    if fault:
        _refuse(f"{name} {fault}")
    return text


def _id(text: str) -> int | None:
    is_plain = text.isascii() and text.isdigit() and len(text) <= ID_DIGITS
    return int(text) if is_plain else None


def _refuse(message: str) -> NoReturn:
    raise RequestRefused(422, "bad_filter", message)
