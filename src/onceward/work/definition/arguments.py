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
from onceward.work.outside.calls import AttemptCalls, NoCalls
from onceward.work.running.effects import EffectContext, Effects
from onceward.work.running.sync import SyncEffects, SyncTransaction
from onceward.work.running.transaction import Transaction, UnitOfWork

_INJECTED: Final = frozenset({"Depends", "Security", "Provide", "Inject"})
"""Classes whose objects stand for a value that another framework, such as FastAPI, provides."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of a handler: the objects from which its arguments are built."""

    events: Sequence[Event[Any]]
    """One event, or those of a batch."""
    unit: UnitOfWork
    job: Job
    """The job of the first event."""
    calls: AttemptCalls | NoCalls
    """The outside calls, or why there are none."""
    error: BaseException | None = None
    """The error that ended the job, for `on_failed`."""

    def effects(self) -> EffectContext:
        """Return the context of the attempt's effects."""
        return EffectContext(self.unit, self.job.id, self.calls)


Build = Callable[[Attempt], Any]
"""Builds the argument of one handler call."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An object that a handler may name in its signature."""

    name: str
    build: Build
    build_sync: Build | None = None
    """Builds an object with blocking calls, for a handler that runs in a thread. None if sync
    handlers get the same object as async ones."""
    is_transactional: bool = False
    """Whether a rollback undoes everything that a handler does with this object."""
    annotation: type | None = None
    """A type that selects the argument under any parameter name."""
    refusal: str = ""
    """Why the handler gets no such object, and what to write instead."""

    def builder(self, *, is_async: bool) -> Build:
        """Return the function that builds the argument for an async or a sync handler."""
        return self.build if is_async or self.build_sync is None else self.build_sync


def _refused(name: str, refusal: str) -> Argument:
    return Argument(name, build=lambda _: None, refusal=refusal)


EVENT: Final = Argument("event", build=lambda attempt: attempt.events[0])
TRANSACTION: Final = Argument(
    "tx",
    build=lambda attempt: Transaction(attempt.unit),
    build_sync=lambda attempt: SyncTransaction(attempt.unit, asyncio.get_running_loop()),
    is_transactional=True,
)
ARGUMENTS: Final = (
    EVENT,
    TRANSACTION,
    Argument(
        "effects",
        build=lambda attempt: Effects(attempt.effects()),
        build_sync=lambda attempt: SyncEffects(attempt.effects(), asyncio.get_running_loop()),
        is_transactional=True,
    ),
    _refused("events", "a call gets one event; name it event, or write @inbox.on_batch"),
)


BATCH_ARGUMENTS: Final = (
    Argument("events", build=lambda attempt: list(attempt.events)),
    TRANSACTION,
    _refused("event", "a batch handler gets a list; name it events, and loop over it"),
    _refused(
        "effects",
        "a batch has no effects: it is rolled back and its events are tried again alone when one "
        "of them fails; write in tx, or write @inbox.on for events with effects",
    ),
)
"""The arguments of a handler that gets many events in one call."""

GIVING_UP_ARGUMENTS: Final = (
    EVENT,
    TRANSACTION,
    Argument("error", build=lambda attempt: attempt.error),
    _refused(
        "effects",
        "a call of another system cannot commit with the end of the job; write a row with tx, and "
        "let a handler or a program act on it",
    ),
)
"""The arguments of the function that runs when a job fails for good."""


def resolve_arguments(
    function: Callable[..., Any], available: Sequence[Argument]
) -> tuple[dict[str, Argument], list[str]]:
    """Return the argument for each parameter, and the faults of parameters that can get none.

    An unknown parameter with a default keeps its default.
    """
    hints = _readable_hints(function)
    arguments: dict[str, Argument] = {}
    faults = []
    for parameter in inspect.signature(function).parameters.values():
        argument = _find(parameter.name, hints.get(parameter.name), available)
        if fault := _parameter_fault(parameter, argument, available):
            faults.append(fault)
        elif argument:
            arguments[parameter.name] = argument
    return arguments, faults


def _parameter_fault(
    parameter: inspect.Parameter, argument: Argument | None, available: Sequence[Argument]
) -> str | None:
    """Return why a handler cannot be called with a parameter, or None."""
    names = ", ".join(argument.name for argument in available if not argument.refusal)
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return (
            f"arguments are passed by name, so {str(parameter).partition(':')[0]} would stay empty;"
            f" name {names}, or use functools.wraps in the decorator"
        )
    if argument is None:
        return _unknown_fault(parameter, names)
    if argument.refusal:
        return f"parameter {parameter.name!r}: {argument.refusal}"
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return f"parameter {parameter.name!r} is positional-only; remove the / after it"
    return None


def _unknown_fault(parameter: inspect.Parameter, names: str) -> str | None:
    """Return why a parameter that no argument fits cannot keep its default, or None."""
    kind = type(parameter.default).__name__
    if kind in _INJECTED:
        return (
            f"parameter {parameter.name!r} has the default {kind}(…), which Onceward does not "
            "resolve; use tx, or open what it needs in the handler"
        )
    if parameter.default is not parameter.empty:
        return None
    if parameter.name in ("self", "cls"):
        return (
            f"a method needs its object, which {parameter.name!r} cannot get; "
            "register the bound method: inbox.on(…)(instance.method)"
        )
    return f"unknown parameter {parameter.name!r}; use {names}"


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
