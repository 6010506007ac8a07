"""Preparations: the functions of ``inbox.at_start``, checked when they are defined."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from onceward.work.transaction import Transaction

Preparation = Callable[[Transaction], Awaitable[None]]


def preparation_faults(function: object) -> Iterable[str]:
    """Yield the reasons why a function cannot run at start."""
    if not callable(function):
        yield f"{function!r} is not a function; write @inbox.at_start above a function"
        return
    name = getattr(function, "__name__", "prepare")
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        yield f"{name} must be async: write `async def {name}(tx)`"
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
    ]
    if required != ["tx"]:
        yield f"{name} gets one argument, tx: write `async def {name}(tx)`"
