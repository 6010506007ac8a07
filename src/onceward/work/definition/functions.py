"""Checks of the functions that a team registers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

HandlerFunction = Callable[..., Any]


def is_function(value: object) -> bool:
    """Return whether a value is a function, a method, or a wrapper around one."""
    return inspect.isroutine(inspect.unwrap(value)) or isinstance(value, partial)  # type: ignore[arg-type] # unwraps any object


def function_faults(function: HandlerFunction) -> Iterable[str]:
    """Yield a fault for each way in which a call of a function would not run its body."""
    inner = inspect.unwrap(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        yield "the function is a generator: a call would not run its body"
    if inspect.iscoroutinefunction(inner) and not inspect.iscoroutinefunction(function):
        yield "an async function is wrapped in a sync one, which does not await its result"
