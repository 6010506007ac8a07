"""Error texts without the values of the failing call, safe to store and to log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onceward.errors import OncewardError, PermanentError
from onceward.runtime.redact import redact

UNREADABLE: Final = "the error text cannot be read"

_MAX_CHARACTERS: Final = 10_000  # a text is cut before it is searched
_MAX_MEMBERS: Final = 100_000


def describe(error: BaseException, secrets: Iterable[str | bytes] = ()) -> str:
    """Return an error as redacted text.

    Onceward's own errors are shown in full, database errors with their primary message only, and
    all others with their first line: the rest may quote rows, statements and inputs.
    """
    try:
        return _description(error, secrets)
    except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
        return UNREADABLE


def _description(error: BaseException, secrets: Iterable[str | bytes]) -> str:
    error = leading_error(error)
    name = type_name(error)
    if isinstance(error, OncewardError):
        return redact(_text(error) or name, secrets)
    message = _primary(error) or _cut_to_line(_text(error))
    return redact(f"{name}: {message}" if message else name, secrets)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message as redacted text, without the error's type."""
    return redact(_cut_to_line(_first_argument(error)))


def type_name(error: BaseException) -> str:
    """Return the name of an error's class, even if a metaclass overrides it."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def locate(error: BaseException) -> str:
    """Return an internal error as redacted text, with the file and line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return describe(error)
    code = trace.tb_frame.f_code
    return f"{describe(error)} (at {code.co_filename}:{trace.tb_lineno} in {code.co_name})"


def leading_error(error: BaseException) -> BaseException:
    """Return the error that represents a group: its first permanent one, else its first."""
    return leading_path(error)[-1]


def leading_path(error: BaseException) -> list[BaseException]:
    """Return an error, or a group and the groups in it that lead to its leading error."""
    path = _path_to_permanent(error) or [error]
    while isinstance(group := path[-1], BaseExceptionGroup) and len(path) < _MAX_MEMBERS:
        path.append(group.exceptions[0])
    return path


def _path_to_permanent(error: BaseException) -> list[BaseException]:
    """Return the path to the first permanent error, or an empty list. Groups may nest deeply."""
    path = [error]
    members = [iter((error,))]
    for _ in range(_MAX_MEMBERS):
        while (part := next(members[-1], None)) is None:
            members.pop()
            if not members:
                return []
        path[len(members) - 1 :] = [part]
        if isinstance(part, PermanentError):
            return path
        if isinstance(part, BaseExceptionGroup):
            members.append(iter(part.exceptions))
    return []


def _first_argument(error: BaseException) -> str:
    """Return the message of an error. Validators of attrs add more arguments to it."""
    return _text(error.args[0] if error.args else error)


def _text(value: object) -> str:
    try:
        return str(value)[:_MAX_CHARACTERS].strip()
    except BaseException:  # noqa: BLE001 - __str__ may be user code, which must not end the process
        return UNREADABLE


def _primary(error: BaseException) -> str | None:
    """Return the primary message of a psycopg error; its detail quotes the row's values."""
    try:
        primary = error.diag.message_primary  # type: ignore[attr-defined]
    except BaseException:  # noqa: BLE001 - any error may define a `diag`
        return None
    return primary if isinstance(primary, str) else None


def _cut_to_line(message: str) -> str:
    lines = message.splitlines()
    return f"{lines[0]} …" if len(lines) > 1 else message
