"""Error texts that are safe to store and to log: they hold no values."""

from __future__ import annotations

from collections.abc import Iterable

from onceward.errors import OncewardError, PermanentError
from onceward.runtime.redact import redact


def describe(error: BaseException, secrets: Iterable[str | bytes] = ()) -> str:
    """An error as it may be stored and shown: what went wrong, without the values it happened to.

    Our own errors speak for themselves. Of any other only the first line is told, and of a
    database's error only its primary message: what follows there is rows, statements and inputs.
    """
    error = leading_error(error)
    name = type(error).__name__
    if isinstance(error, OncewardError):
        return redact(_message(error) or name, secrets)
    message = _primary(error) or _first_line(_message(error))
    return redact(f"{name}: {message}" if message else name, secrets)


def locate(error: BaseException) -> str:
    """An error of our own making as it may be logged: what went wrong, and in which line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return describe(error)
    code = trace.tb_frame.f_code
    return f"{describe(error)} (at {code.co_filename}:{trace.tb_lineno} in {code.co_name})"


def leading_error(error: BaseException) -> BaseException:
    """The error that a group is told by: the first permanent one in it, else the first."""
    if isinstance(error, BaseExceptionGroup):
        error = error.subgroup(PermanentError) or error
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _message(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001 - the error's own __str__ is the user's code
        return "its text cannot be read"


def _primary(error: BaseException) -> str | None:
    """What PostgreSQL says went wrong, by psycopg; its detail holds the row's values."""
    try:
        primary = error.diag.message_primary  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - any error may have a `diag` of its own making
        return None
    return primary if isinstance(primary, str) else None


def _first_line(message: str) -> str:
    lines = message.splitlines()
    return f"{lines[0]} …" if len(lines) > 1 else message
