"""Lines of code, for error messages, logs and tracebacks: ``app/mail.py:31 in send_mail``."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

_OWN_FOLDER: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # noqa: PTH118, PTH120 - a prefix
_STANDARD_LIBRARY: Final = os.path.join(os.path.dirname(os.__file__), "")  # noqa: PTH118, PTH120 - a prefix
_LINE_ATTRIBUTE: Final = "__onceward_line__"
_PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")


def code_location(code: CodeType, line: int) -> str:
    """Return a line with its function: ``app/mail.py:31 in send_mail``."""
    return f"{_line(code, line)} in {code.co_qualname.rpartition('<locals>.')[2]}"


def frame_line(frame: FrameType) -> str:
    """Return the line at which a frame is now, such as ``app.py:31``."""
    return _line(frame.f_code, frame.f_lineno)


def frame_location(frame: FrameType) -> str:
    """Return the line at which a frame is now, with its function."""
    return code_location(frame.f_code, frame.f_lineno)


def instruction_location(code: CodeType, offset: int) -> str:
    """Return the line of an instruction, with its function. `offset` is a frame's ``f_lasti``."""
    lines = (line for start, end, line in code.co_lines() if start <= offset < end)
    return code_location(code, next(lines, None) or code.co_firstlineno)


def awaiting_location(frame: FrameType | None) -> str | None:
    """Return the nearest line outside Onceward that awaits the coroutine of a frame.

    None if a task runs the coroutine: the frames above are those of the event loop.
    """
    while frame is not None and frame.f_code.co_flags & inspect.CO_COROUTINE:
        if not is_own(frame.f_code.co_filename):
            return frame_location(frame)
        frame = frame.f_back
    return None


def place_at(function: Callable[..., Any], line: str) -> None:
    """Let `definition_line` name a line of the user's, for a function that Onceward made for it."""
    vars(function)[_LINE_ATTRIBUTE] = line


def definition_line(function: Callable[..., Any]) -> str | None:
    """Return the line that defines a function, or None for an object without code."""
    if line := getattr(function, _LINE_ATTRIBUTE, None):
        return str(line)
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _line(code, code.co_firstlineno) if isinstance(code, CodeType) else None


def short_path(path: str) -> str:
    """Return a path relative to the working directory or to the entry of sys.path it is below.

    A library's path is relative to its entry even if the working directory contains it.
    """
    roots = [] if is_library(path) else [_working_directory()]
    roots += sorted((entry for entry in sys.path if os.path.isabs(entry)), key=len, reverse=True)  # noqa: PTH117 - text
    for root in roots:
        prefix = root.rstrip(os.sep) + os.sep
        if root and path.startswith(prefix):
            return path[len(prefix) :]
    return path


def is_own(path: str) -> bool:
    """Return whether a file is Onceward's."""
    return path.startswith(_OWN_FOLDER)


@lru_cache(maxsize=1_000)
def is_library(path: str) -> bool:
    """Return whether a file is of the standard library, installed, or generated (``<string>``)."""
    return (
        path.startswith((_STANDARD_LIBRARY, "<"))
        or any(f"{os.sep}{folder}{os.sep}" in path for folder in _PACKAGE_FOLDERS)
    )  # fmt: skip


def _line(code: CodeType, line: int) -> str:
    return f"{short_path(code.co_filename)}:{line}"


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - compared as text
    except OSError:  # it was deleted
        return ""
