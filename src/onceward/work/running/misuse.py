"""Mistakes with `event`, `tx`, `effects`, writes and RetryLater, among all errors of a handler."""

from __future__ import annotations

import dis
import re
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any, Final

from onceward.errors import RetryLater, TransactionMisuse
from onceward.model.events import Event
from onceward.runtime.code_location import code_location
from onceward.runtime.error_text import leading_error
from onceward.runtime.suggest import suggest_or_list
from onceward.runtime.value_kind import kind_of
from onceward.work.running.effects import EXAMPLE_KEY, Effects
from onceward.work.running.repeatable_writes import transition, upsert
from onceward.work.running.sync import SyncEffects, SyncTransaction
from onceward.work.running.transaction import Transaction

_NAMES: Final[Mapping[type, str]] = {
    Event: "event",
    Transaction: "tx",
    SyncTransaction: "tx",
    Effects: "effects",
    SyncEffects: "effects",
}
_BINDING: Final = re.compile(r"(?P<owner>\w+)\.(?P<method>\w+)\(\) (?P<fault>.*)")
_WRITE: Final = re.compile(r"(?P<function>upsert|transition)\(\) (?P<fault>.*)")
_UNKNOWN: Final = re.compile(r"got an unexpected keyword argument '(\w+)'")
_SUBSCRIPT: Final = re.compile(r"'(?P<owner>\w+)' object (?:is not subscriptable|is not iterable)")
_NO_SECONDS: Final = "RetryLater.__init__() missing 1 required positional argument: 'seconds'"
_NEEDS: Final = {"tx": "a statement", "effects": "a key"}

_WRITES: Final = {
    upsert: 'upsert(tx, "table", {"id": …}, {"column": …})',
    transition: 'transition(tx, "table", id, to="paid", only_from=["open"])',
}
_PAYLOAD: Final = "use event.payload"
_EACH_ROW: Final = "call tx.execute for each row"
_ONCE: Final = f"use effects.once({EXAMPLE_KEY})"
_CALL: Final = f"use effects.call({EXAMPLE_KEY}, function, …)"
_INSTEAD: Final[Mapping[str, Mapping[str, str]]] = {
    "event": {
        "data": _PAYLOAD,
        "json": _PAYLOAD,
        "get": "use event.payload.get(…)",
        "object": _PAYLOAD,
        "event_id": "use event.id",
        "event_type": "use event.type",
        "name": "use event.type",
        "created_at": "use event.received_at",
        "text": "use event.body, which is bytes",
    },
    "tx": {
        "begin": "the transaction begins with its first statement",
        "commit": "the transaction commits when the handler returns",
        "rollback": "raise an error to roll back",
        "executemany": _EACH_ROW,
        "execute_many": _EACH_ROW,
        "fetchall": "use tx.fetch",
        "fetchone": "use tx.fetch_one",
        "fetchrow": "use tx.fetch_one",
        "fetchval": "use tx.fetch_value",
        "scalar": "use tx.fetch_value",
        "upsert": f"write {_WRITES[upsert]}",
        "transition": f"write {_WRITES[transition]}",
    },
    "effects": {"run": _CALL, "do": _CALL, "mark": _ONCE, "execute": _CALL},
}
"""Names that other libraries have, and what a handler writes instead."""


def explain(error: BaseException) -> BaseException:
    """Return a permanent error with the line for a mistake of the handler's code, else `error`."""
    try:
        return _explained(leading_error(error)) or error
    except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
        return error


def _explained(error: BaseException) -> TransactionMisuse | None:
    trace = _innermost(error.__traceback__)
    if trace is None:
        return None
    mistake = _mistake(error, trace.tb_frame) or _row_mistake(error, trace)
    if mistake is None:
        return None
    line = code_location(trace.tb_frame.f_code, trace.tb_lineno)
    return TransactionMisuse(f"{line}: {mistake}").with_traceback(error.__traceback__)


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _mistake(error: BaseException, frame: FrameType) -> str | None:
    """Return the mistake that an error shows, which was raised in `frame`, or None."""
    if isinstance(error, RetryLater):
        return _delay_mistake(error.seconds)
    if type(error) is AttributeError:
        return _attribute_mistake(error.obj, error.name)
    return _type_mistake(str(error), frame) if type(error) is TypeError else None


def _type_mistake(text: str, frame: FrameType) -> str | None:
    if text == _NO_SECONDS:
        return 'RetryLater needs seconds; write RetryLater(60, "reason")'
    if (match := _BINDING.match(text)) and (name := _owner(match["owner"], frame)):
        return _call_mistake(name, match["method"], match["fault"])
    if match := _WRITE.fullmatch(text):
        return _write_mistake(match["function"], match["fault"], frame)
    if (match := _SUBSCRIPT.match(text)) and _owner(match["owner"], frame) == "event":
        return f'an event has no items of its own; {_PAYLOAD}, such as event.payload["id"]'
    return None


def _owner(kind: str, frame: FrameType) -> str | None:
    """Return the argument that an error is about, by the name of its class.

    Python raises the error in the frame of the user. Another class may have the same name, so one
    of that frame's variables must be the object itself.
    """
    kinds = {type(value) for value in frame.f_locals.values()} & _NAMES.keys()
    return next((_NAMES[each] for each in kinds if each.__name__ == kind), None)


def _delay_mistake(seconds: object) -> str | None:
    if isinstance(seconds, int | float):
        return None
    return f'RetryLater: seconds is {kind_of(seconds)}; write RetryLater(60, "reason")'


def _row_mistake(error: BaseException, trace: TracebackType) -> str | None:
    """Return the mistake of ``row[0]``: a number as the key of a local dict whose keys are text."""
    if type(error) is not KeyError or type(number := error.args[0]) is not int:
        return None
    values = trace.tb_frame.f_locals
    name = _subscripted_name(trace, number)
    row = values.get(name) if name else None
    has_tx = any(_NAMES.get(type(value)) == "tx" for value in values.values())
    is_row = type(row) is dict and row and all(type(key) is str for key in row)
    if not has_tx or not is_row:
        return None
    return f'{name} is a dict, as every row of tx is, by column; write {name}["column"]'


def _subscripted_name(trace: TracebackType, number: int) -> str | None:
    """Return the local variable of ``name[number]``, if that is the instruction that failed."""
    before: list[object] = []
    for instruction in dis.get_instructions(trace.tb_frame.f_code):
        if instruction.offset == trace.tb_lasti:
            break
        before.append(instruction.argval)
    name = before[-2] if before[-1:] == [number] and len(before) > 1 else None
    return name if isinstance(name, str) else None


def _attribute_mistake(owner: Any, attribute: object) -> str | None:
    name = _NAMES.get(type(owner))
    if name is None or not isinstance(attribute, str):
        return None
    options = [option for option in dir(owner) if not option.startswith("_")]
    instead = _INSTEAD[name].get(attribute)
    hint = f"; {instead}" if instead else suggest_or_list(attribute, options, f"{name} has")
    return f"there is no {name}.{attribute}{hint}"


def _call_mistake(name: str, method: str, fault: str) -> str | None:
    if name not in _NEEDS:
        return None
    call = f"{name}.{method}"
    if call == "effects.call":
        return f"effects.call needs a key and a function; {_CALL}"
    arguments = EXAMPLE_KEY if name == "effects" else 'sql, {"name": …}'
    if fault.startswith("missing"):
        return f"{call} needs {_NEEDS[name]}, such as {call}({arguments})"
    if unknown := _UNKNOWN.match(fault):
        return f"{call} has no argument {unknown[1]!r}; write {call}({arguments})"
    return f"{call} got the wrong number of arguments; write {call}({arguments})"


def _write_mistake(name: str, fault: str, frame: FrameType) -> str | None:
    """Return the mistake of a call of `upsert` or `transition`, not of another one of that name."""
    visible = [*frame.f_locals.values(), *frame.f_globals.values()]
    for function, example in _WRITES.items():
        if function.__name__ == name and any(value is function for value in visible):
            return f"{name}() {fault}; write {example}"
    return None
