"""How an attempt ends: from what its handler raised to a settlement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from onceward.errors import OncewardError, PermanentError, RetryLater, StoreUnavailable
from onceward.model.jobs import Done, Fail, FailureType, Postpone, Retry, Settlement
from onceward.runtime.redact import redact
from onceward.work.retry import RetryPolicy, backoff_seconds, is_transient

LONGEST_DELAY_SECONDS: Final = 366 * 86_400.0


def settlement_of(
    error: Exception | None,
    *,
    attempts: int,
    max_attempts: int,
    policy: RetryPolicy,
    random: Callable[[], float],
    secrets: Iterable[str | bytes] = (),
) -> Settlement:
    """Decide how an attempt ends. `attempts` were used up before this one."""
    if error is None:
        return Done()
    text = describe(error, secrets)
    if isinstance(error, StoreUnavailable):
        return Postpone(backoff_seconds(1, policy.base_seconds, policy.max_seconds, random), text)
    if not is_transient(error):
        return Fail(FailureType.PERMANENT, text)
    attempt = attempts + 1
    if attempt >= max_attempts:
        return Fail(FailureType.EXHAUSTED, text)
    asked = _asked_seconds(_leading(error))
    if asked is not None:
        return Retry(asked, text)
    delay = backoff_seconds(attempt, policy.base_seconds, policy.max_seconds, random)
    return Retry(delay, text)


def describe(error: BaseException, secrets: Iterable[str | bytes] = ()) -> str:
    """An error as it may be stored and shown: what went wrong, without the values it happened to.

    Our own errors speak for themselves. Of any other only the first line is told, and of a
    database's error only its primary message: what follows there is rows, statements and inputs.
    """
    error = _leading(error)
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


def _leading(error: BaseException) -> BaseException:
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


def _asked_seconds(error: BaseException) -> float | None:
    """The delay a handler asked for, within bounds; None where it asked for none that is one."""
    if not isinstance(error, RetryLater) or not isinstance(error.seconds, int | float):
        return None
    seconds = float(min(max(error.seconds, 0), LONGEST_DELAY_SECONDS))
    return None if math.isnan(seconds) else seconds
