"""Preparations: the functions of ``inbox.at_start``, checked when they are defined."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence

from onceward.errors import (
    ConfigurationError,
    PreparationFailed,
    StoreError,
    TransactionMisuse,
)
from onceward.runtime.error_text import describe
from onceward.runtime.tracebacks import package_of, traceback_text
from onceward.work.running.misuse import explain
from onceward.work.running.transaction import Transaction, UnitOfWork

Preparation = Callable[[Transaction], Awaitable[None]]


async def run_preparations(unit: UnitOfWork, preparations: Sequence[Preparation]) -> None:
    """Run the functions in one transaction, and commit it.

    Raises PreparationFailed for an error of theirs, and TransactionMisuse, which names the line.
    """
    running: Preparation | None = None
    try:
        async with unit:
            for preparation in preparations:
                running = preparation
                await preparation(Transaction(unit))
            running = None
            await unit.commit()
    except (ConfigurationError, StoreError, TransactionMisuse):
        raise
    except Exception as error:
        if (explained := explain(error)) is not error:
            raise explained from error
        raise PreparationFailed(_failure_text(running, error)) from error


def _failure_text(function: Preparation | None, error: Exception) -> str:
    """Return the name of the function, its error, and the line that raised it."""
    name = getattr(function, "__name__", "")
    reason = describe(error, show_values=True)  # no event takes part
    location = traceback_text(error, package=package_of(function)).location
    place = f" ({location})" if location and location not in reason else ""
    failure = f"@inbox.at_start {name} failed: {reason}{place}".replace("  ", " ")
    return ". ".join([failure, *getattr(error, "__notes__", ())])


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
