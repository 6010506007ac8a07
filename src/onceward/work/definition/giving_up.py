"""The function that runs when a job fails for good: `on_failed`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from onceward.work.definition.arguments import GIVING_UP_ARGUMENTS, Build, resolve_arguments
from onceward.work.definition.functions import HandlerFunction, function_faults, is_function


@dataclass(frozen=True, slots=True)
class GivingUp:
    """A function that runs in the transaction that ends a job as failed."""

    function: HandlerFunction
    arguments: tuple[tuple[str, Build], ...]
    """Its parameters, each with the function that builds the argument."""
    is_async: bool


def make_giving_up(function: object) -> tuple[GivingUp | None, list[str]]:
    """Return the function with its arguments, and the reasons why it cannot run."""
    if function is None:
        return None, []
    if not callable(function) or not is_function(function):
        return None, [f"on_failed is {function!r}; pass a function of event, tx and error"]
    arguments, faults = resolve_arguments(function, GIVING_UP_ARGUMENTS)
    faults += function_faults(function)
    is_async = inspect.iscoroutinefunction(function)
    built = tuple((name, each.builder(is_async=is_async)) for name, each in arguments.items())
    return GivingUp(function, built, is_async), [f"on_failed: {fault}" for fault in faults]
