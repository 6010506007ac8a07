"""Error texts without the values of the failing call, safe to store and to log."""

from __future__ import annotations

from collections.abc import Iterable

from onceward.errors import OncewardError, PermanentError
from onceward.runtime.redact import redact


def describe(error: BaseException, secrets: Iterable[str | bytes] = ()) -> str:
    """Return an error as redacted text.

    Onceward's own errors are shown in full, database errors with their primary message only, and
    all others with their first line: the rest may quote rows, statements and inputs.
    """
    error = leading_error(error)
    name = type(error).__name__
    if isinstance(error, OncewardError):
        return redact(_message(error) or name, secrets)
    message = _primary(error) or _first_line(_message(error))
    return redact(f"{name}: {message}" if message else name, secrets)


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
    if isinstance(error, BaseExceptionGroup):
        error = error.subgroup(PermanentError) or error
    path = [error]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        path.append(error)
    return path


def _message(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001 - __str__ may be user code
        return "the error text cannot be read"


def _primary(error: BaseException) -> str | None:
    """Return the primary message of a psycopg error; its detail quotes the row's values."""
    try:
        primary = error.diag.message_primary  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - any error may define a `diag`
        return None
    return primary if isinstance(primary, str) else None


def _first_line(message: str) -> str:
    lines = message.splitlines()
    return f"{lines[0]} …" if len(lines) > 1 else message
