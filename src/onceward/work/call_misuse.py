"""Calls of `tx` and `effects` with wrong arguments, among all TypeErrors."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Final

from onceward.errors import TransactionMisuse
from onceward.runtime.code_location import code_location
from onceward.work.effects import EXAMPLE_KEY, Effects
from onceward.work.sync import SyncEffects, SyncTransaction
from onceward.work.transaction import Transaction

_NAMES: Final[dict[type, str]] = {
    Transaction: "tx",
    SyncTransaction: "tx",
    Effects: "effects",
    SyncEffects: "effects",
}
_BINDING: Final = re.compile(r"(?P<owner>\w+)\.(?P<method>\w+)\(\) (?P<fault>.*)")
_UNKNOWN: Final = re.compile(r"got an unexpected keyword argument '(\w+)'")
_NEEDS: Final = {"tx": "a statement", "effects": "a key"}


def explain(error: BaseException) -> BaseException:
    """Return a permanent error for a call of `tx` or `effects` that Python refused, else `error`.

    Python raises it in the frame of the caller, with the name of the method. Another class may have
    the same name, so one of that frame's variables must be the object itself.
    """
    match = _BINDING.match(str(error)) if type(error) is TypeError else None
    trace = _innermost(error.__traceback__)
    if match is None or trace is None:
        return error
    kinds = {type(value) for value in trace.tb_frame.f_locals.values()} & _NAMES.keys()
    for kind in kinds:
        if kind.__name__ == match["owner"]:
            line = code_location(trace.tb_frame.f_code, trace.tb_lineno)
            fault = _fault(_NAMES[kind], match["method"], match["fault"])
            return TransactionMisuse(f"{line}: {fault}").with_traceback(error.__traceback__)
    return error


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _fault(name: str, method: str, fault: str) -> str:
    call = f"{name}.{method}"
    arguments = EXAMPLE_KEY if name == "effects" else 'sql, {"name": …}'
    if fault.startswith("missing"):
        return f"{call} needs {_NEEDS[name]}, such as {call}({arguments})"
    if unknown := _UNKNOWN.match(fault):
        return f"{call} has no argument {unknown[1]!r}; write {call}({arguments})"
    return f"{call} got the wrong number of arguments; write {call}({arguments})"
