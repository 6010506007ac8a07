"""Filters in the worker: they decide before the handler starts whether it wants an event."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from onceward.errors import EventFiltered, OtherVersionWants, PermanentError
from onceward.model.events import Event
from onceward.model.jobs import Job
from onceward.ports import Queue
from onceward.runtime.value_kind import kind_of
from onceward.work.definition.filters import Condition, filter_text, passes
from onceward.work.payloads.payload import read_document
from onceward.work.running.handler_call import Abandonment, HandlerCall
from onceward.work.running.loop_watch import LoopWatch


async def require_matching(filter: str, job: Job, body: bytes, queue: Queue) -> None:
    """Check the mapping of a handler again, on the payload that the handler gets.

    Another version of the handler may want the event, or its receiver knew no filters. Raise
    OtherVersionWants or EventFiltered, unless a person routed the event. A payload that cannot be
    decoded passes: its job fails, with the reason.
    """
    document = read_document(job.source, job.headers, body)
    if passes(filter, document) or await queue.was_routed(job.id):
        return
    reason = f"filtered: when {filter_text(filter)} does not match"
    if any(not each or passes(each, document) for each in await queue.filters_for(job)):
        raise OtherVersionWants(f"{reason}; another version of the handler wants the event")
    raise EventFiltered(reason)


def condition_call(
    condition: Condition, event: Event[Any], loop_watch: LoopWatch, abandonment: Abandonment
) -> HandlerCall:
    """Return the call of a filter function, which runs as a handler does."""
    return HandlerCall(
        partial(condition.function, event),
        {},
        is_async=condition.is_async,
        loop_watch=loop_watch,
        abandonment=abandonment,
    )


def require_true(condition: Condition, result: object) -> None:
    """Raise EventFiltered if a filter function returned False.

    Raise PermanentError if it returned anything but True or False: a value that merely counts as
    true may be a mistake, such as a coroutine.
    """
    if result is True:
        return
    if result is False:
        raise EventFiltered(f"filtered: {condition.label} returned False")
    if inspect.iscoroutine(result):
        result.close()
    raise PermanentError(f"{condition.label} returned {kind_of(result)}; return True or False")
