"""Handler arguments: the objects that a handler may name in its signature.

`ARGUMENTS` is the registry. A new argument, such as an ORM session, is one more entry.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from onceward.model.events import Event
from onceward.model.jobs import Job
from onceward.work.effects import Effects
from onceward.work.sync import SyncEffects, SyncTransaction
from onceward.work.transaction import Transaction, UnitOfWork

Build = Callable[[Event[Any], UnitOfWork, Job], Any]
"""Builds the argument of one handler call."""

SyncWrapper = Callable[[Any, asyncio.AbstractEventLoop], Any]
"""Wraps an async argument in blocking calls, for a handler that runs in a thread."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An object that a handler may name in its signature."""

    name: str
    build: Build
    sync_wrapper: SyncWrapper | None = None
    """None if sync handlers get the same object as async ones."""
    is_transactional: bool = False
    """Whether a rollback undoes everything that a handler does with this object."""
    annotation: type | None = None
    """A type that selects the argument under any parameter name."""

    def builder(self, *, is_async: bool) -> Build:
        """Return the function that builds the argument for an async or a sync handler."""
        build, wrap = self.build, self.sync_wrapper
        if is_async or wrap is None:
            return build
        return lambda event, unit, job: wrap(build(event, unit, job), asyncio.get_running_loop())


ARGUMENTS: Final = (
    Argument("event", build=lambda event, _unit, _job: event),
    Argument(
        "tx",
        build=lambda _event, unit, _job: Transaction(unit),
        sync_wrapper=SyncTransaction,
        is_transactional=True,
    ),
    Argument(
        "effects",
        build=lambda _event, unit, job: Effects(unit, job.id),
        sync_wrapper=SyncEffects,
        is_transactional=True,
    ),
)


def resolve_arguments(
    function: Callable[..., Any], available: Sequence[Argument]
) -> tuple[dict[str, Argument], list[str]]:
    """Return the argument for each parameter, and the names of unknown parameters.

    An unknown parameter with a default keeps its default.
    """
    hints = _readable_hints(function)
    arguments: dict[str, Argument] = {}
    unknown = []
    for parameter in inspect.signature(function).parameters.values():
        if argument := _find(parameter.name, hints.get(parameter.name), available):
            arguments[parameter.name] = argument
        elif parameter.default is parameter.empty:
            unknown.append(parameter.name)
    return arguments, unknown


def _find(name: str, hint: object, available: Sequence[Argument]) -> Argument | None:
    """Find the argument for a parameter: by its name, else by its annotation."""
    for argument in available:
        if argument.name == name:
            return argument
    for argument in available:
        if argument.annotation is not None and argument.annotation is hint:
            return argument
    return None


def _readable_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are user code; names may suffice
        return {}
