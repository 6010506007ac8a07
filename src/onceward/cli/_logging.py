"""The logs of a process on standard error: their form (--log) and their level (--log-level)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal

import click
import msgspec

from onceward.runtime.log_fields import seconds_text
from onceward.runtime.redact import escape_controls

LogFormat = Literal["text", "json"]

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    *("asctime", "message", "taskName"),
    "color_message",  # uvicorn's message again, with escape sequences
}
"""The attributes of every record; the others are its fields."""
_ALWAYS_SHOWN: Final = frozenset({"event_id", "type"})
"""Fields whose values the sender chooses: a message may contain such a text by chance."""
_TRACEBACK: Final = "traceback"
_PLAIN: Final = re.compile(r"[^\s\"=]+")
_INDENT: Final = "    "
_MAX_INTEGER: Final = 2**63


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --log and --log-level, and start the log before the command runs."""

    @click.option(
        "--log",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the log on standard error.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        metavar="LEVEL",
        show_default="info for Onceward and the app, warning for other libraries",
        help="Log from debug, info, warning or error on, for libraries too.",
    )
    @wraps(command)
    def logged(*, log: LogFormat, log_level: str | None, **options: Any) -> None:
        _start_logging(log, log_level, options.get("app"))
        command(**options)

    return logged


def _start_logging(log: LogFormat, level: str | None, app: str | None) -> None:
    """Write logs to standard error, as text or as JSON lines.

    Without a level, only Onceward and the app log at INFO: libraries log secrets there, such as
    httpx the query of each URL.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log == "json" else TextFormatter())
    logging.basicConfig(level=(level or "warning").upper(), handlers=[handler])
    if level is None:
        for name in ("onceward", *([_top_level_name(app)] if app else [])):
            logging.getLogger(name).setLevel(logging.INFO)
    # uvicorn warns about every malformed request, and psycopg about errors that it ignores.
    for name in ("uvicorn", "psycopg"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _top_level_name(app: str) -> str:
    """Return the name of the module that APP is loaded as, or of its package."""
    location = app.partition(":")[0]
    return Path(location).stem if location.endswith(".py") else location.partition(".")[0]


class TextFormatter(logging.Formatter):
    """One line for each record, with the fields that the message does not show.

    A traceback follows on indented lines. No other line break or control character is written.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        message = record.getMessage()
        fields = [
            f"{name}={_quoted(text)}"
            for name, value in _fields(record).items()
            if name != _TRACEBACK
            and (not _contains(message, text := _text(value)) or name in _ALWAYS_SHOWN)
        ]
        head = f"{_time(record)} {record.levelname:<7} {record.name}: {message}"
        lines = [" ".join([head, *fields]), *(_INDENT + line for line in _trace_lines(record))]
        return "\n".join(map(escape_controls, lines))


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, with the fields at its top level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        entry = {
            **{name: _json_value(value) for name, value in _fields(record).items()},
            "at": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        if trace := list(_trace_lines(record)):
            entry[_TRACEBACK] = "\n".join(map(escape_controls, trace))
        order = sorted(entry, key=lambda name: name not in ("at", "level", "logger", "message"))
        return msgspec.json.encode({name: entry[name] for name in order}).decode()


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and value is not None
    }


def _trace_lines(record: logging.LogRecord) -> Iterator[str]:
    """Yield the lines of the field `traceback`, and of an exception that was passed to the log."""
    texts = [vars(record).get(_TRACEBACK), record.stack_info]
    if record.exc_info:
        texts.append(logging.Formatter().formatException(record.exc_info))
    for text in filter(None, texts):
        yield from str(text).split("\n")


def _time(record: logging.LogRecord) -> str:
    # Not strftime: it imports a module, which fails for a line at the end of the process.
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return f"{at.removesuffix('+00:00')}Z"


def _text(value: object) -> str:
    return seconds_text(value) if isinstance(value, float) else str(value)


def _contains(message: str, text: str) -> bool:
    """Return whether a message shows a value as a whole word."""
    return bool(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", message))


def _quoted(text: str) -> str:
    """Return a value of a field; one with spaces, quotes or ``=`` in quotes."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _json_value(value: object) -> object:
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < _MAX_INTEGER)
    return value if is_number else _clean(str(value))


def _clean(text: str) -> str:
    """Escape control characters, except line breaks: JSON has its own escape for them."""
    return "\n".join(map(escape_controls, text.split("\n")))
