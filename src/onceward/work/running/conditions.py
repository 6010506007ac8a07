"""Calls of filter functions: they decide before the handler starts whether it wants an event."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from onceward.errors import EventFiltered, PermanentError
from onceward.model.events import Event
from onceward.runtime.value_kind import kind_of
from onceward.work.definition.filters import Condition
from onceward.work.running.handler_call import Abandonment, HandlerCall
from onceward.work.running.loop_watch import LoopWatch


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
