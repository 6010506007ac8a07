"""Lines of the user's code, for error messages: ``app.py:31 in credit``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any


def frame_line(frame: FrameType) -> str:
    """Return the line at which a frame is now, such as ``app.py:31``."""
    return _line(frame.f_code, frame.f_lineno)


def frame_location(frame: FrameType) -> str:
    """Return the line at which a frame is now, with its function: ``app.py:31 in credit``."""
    return f"{frame_line(frame)} in {frame.f_code.co_name}"


def instruction_location(code: CodeType, offset: int) -> str:
    """Return the line of an instruction, with its function. `offset` is a frame's ``f_lasti``."""
    lines = (line for start, end, line in code.co_lines() if start <= offset < end)
    return f"{_line(code, next(lines, None) or code.co_firstlineno)} in {code.co_name}"


def awaiting_location(frame: FrameType | None, folder: str) -> str | None:
    """Return the nearest line outside `folder` that awaits the coroutine of a frame.

    None if a task runs the coroutine: the frames above are those of the event loop.
    """
    while frame is not None and frame.f_code.co_flags & inspect.CO_COROUTINE:
        if not frame.f_code.co_filename.startswith(folder):
            return frame_location(frame)
        frame = frame.f_back
    return None


def definition_line(function: Callable[..., Any]) -> str | None:
    """Return the line that defines a function, or None for an object without code."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _line(code, code.co_firstlineno) if isinstance(code, CodeType) else None


def _line(code: CodeType, line: int) -> str:
    return f"{PurePath(code.co_filename).name}:{line}"
