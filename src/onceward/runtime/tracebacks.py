"""Tracebacks without values: the file, line and function of each frame, safe to store and to log.

Onceward's own frames are left out, and so are the library frames below them. Of the library frames
between two frames of the user's code, only the innermost is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from types import FrameType, TracebackType
from typing import Final, NamedTuple

from onceward.runtime.code_location import code_location, is_library, is_own
from onceward.runtime.error_text import leading_path, type_name
from onceward.runtime.redact import escape_controls, mask_secrets, printable

MAX_FRAMES: Final = 20
"""Frames in the whole text, shared by the error and its causes."""
MAX_CAUSES: Final = 4
LIMIT_CHARACTERS: Final = 4_000

# A traceback of a deep recursion is read only at its two ends.
_READ_FRAMES: Final = 500
_CUT: Final = "…"
_CUT_LINE: Final = f"\n{_CUT}\n"


@dataclass(frozen=True, slots=True)
class TracebackText:
    """Where an error was raised. Both texts are empty if none of the user's code took part."""

    text: str
    """One frame a line, in calling order, then the frames of each cause."""
    location: str
    """The innermost frame of the user's code, such as ``app/mail.py:31 in send_mail``."""


class _Origin(Enum):
    OWN = "own"
    USER = "user"
    LIBRARY = "library"


class _Frame(NamedTuple):
    origin: _Origin
    trace: TracebackType


@dataclass(frozen=True, slots=True)
class _Section:
    """The frames of one error, outermost first. None stands for frames that were not read."""

    heading: str
    frames: Sequence[_Frame | None]


def traceback_text(
    error: BaseException, *, package: str = "", secrets: Iterable[str | bytes] = ()
) -> TracebackText:
    """Return where an error and its causes were raised.

    Modules of the top-level `package` count as the user's code even if they are installed as a
    library. A group is represented by its leading error.
    """
    sections = [_section("", error, package)]
    for cause in islice(_causes(error), MAX_CAUSES + 1):
        heading = f"caused by {printable(type_name(leading_path(cause)[-1]))}"
        sections.append(_section(heading, cause, package))
    location = next(filter(None, map(_location, sections)), "")
    if not location:
        return TracebackText("", "")
    text = mask_secrets("\n".join(_lines(sections)), secrets)
    return TracebackText(_cut_middle(text), printable(mask_secrets(location, secrets)))


def package_of(function: object) -> str:
    """Return the top-level package, or module, that defines a function."""
    module: str = getattr(function, "__module__", None) or ""
    return module.partition(".")[0]


def traceback_from(frames: Iterable[FrameType]) -> TracebackType | None:
    """Return a traceback through frames that still run, given innermost first."""
    trace: TracebackType | None = None
    for frame in frames:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno or 0)
    return trace


def _frame_text(trace: TracebackType) -> str:
    """Return the file, line and function of a frame."""
    return escape_controls(code_location(trace.tb_frame.f_code, trace.tb_lineno))


# Frames.


def _section(heading: str, error: BaseException, package: str) -> _Section:
    """Return the frames of an error; those of a group are followed by those of its leading one."""
    frames: list[_Frame | None] = []
    for part in leading_path(error):
        walk = _walk(part.__traceback__)
        frames += _selected(islice(walk, _READ_FRAMES), package)
        innermost = deque(walk, maxlen=_READ_FRAMES)
        if len(innermost) == _READ_FRAMES:
            frames.append(None)
        frames += _selected(innermost, package)
    return _Section(heading, frames)


def _walk(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _selected(traces: Iterable[TracebackType], package: str) -> list[_Frame]:
    selected: list[_Frame] = []
    caller = _Origin.USER
    for trace in traces:
        origin = _origin(trace.tb_frame, package)
        if origin is not _Origin.LIBRARY:
            caller = origin
        elif caller is _Origin.OWN:
            continue
        elif selected and selected[-1].origin is _Origin.LIBRARY:
            selected.pop()
        if origin is not _Origin.OWN:
            selected.append(_Frame(origin, trace))
    return selected


def _origin(frame: FrameType, package: str) -> _Origin:
    path = frame.f_code.co_filename
    if is_own(path):
        return _Origin.OWN
    if not is_library(path):
        return _Origin.USER
    module = frame.f_globals.get("__name__")
    is_users = bool(package) and isinstance(module, str) and module.partition(".")[0] == package
    return _Origin.USER if is_users else _Origin.LIBRARY


# Causes.


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the cause of an error, the cause of that one, and so on."""
    seen = {id(error)}
    while True:
        leading = leading_path(error)[-1]
        cause = leading.__cause__
        if cause is None and not leading.__suppress_context__:
            cause = leading.__context__
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        error = cause


# Text.


def _location(section: _Section) -> str:
    for frame in reversed(section.frames):
        if frame is not None and frame.origin is _Origin.USER:
            return _frame_text(frame.trace)
    return ""


def _lines(sections: Sequence[_Section]) -> list[str]:
    """Return the lines of the sections. Each has the same share of the frames."""
    shown = sections[: MAX_CAUSES + 1]
    share = MAX_FRAMES // len(shown)
    lines: list[str] = []
    for section in shown:
        lines += [section.heading] if section.heading else []
        lines += _shortened(section.frames, share)
    return [*lines, f"{_CUT} more causes"] if len(sections) > len(shown) else lines


def _shortened(frames: Sequence[_Frame | None], limit: int) -> list[str]:
    """Return the lines of the outermost and the innermost frames, at most `limit` together."""
    if len(frames) <= limit:
        outermost, innermost = frames, frames[:0]
    else:
        outermost, innermost = frames[: limit // 2], frames[-(limit - limit // 2) :]
    is_cut = None in frames or bool(innermost)
    return [
        *(_frame_text(frame.trace) for frame in outermost if frame),
        *([f"{_CUT} more frames"] if is_cut else []),
        *(_frame_text(frame.trace) for frame in innermost if frame),
    ]


def _cut_middle(text: str) -> str:
    """Return the text without lines from its middle, so that it fits the limit."""
    if len(text) <= LIMIT_CHARACTERS:
        return text
    half = (LIMIT_CHARACTERS - len(_CUT_LINE)) // 2
    start, _, cut_line = text[:half].rpartition("\n")
    rest, _, end = text[-half:].partition("\n")
    return (start or cut_line) + _CUT_LINE + (end or rest)
