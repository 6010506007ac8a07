"""Error texts without the values of the failing call, safe to store and to log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from onceward.errors import OncewardError, PermanentError, StoreError
from onceward.runtime.error_values import mask_texts, mask_values, masked_values
from onceward.runtime.redact import redact

_QUOTED: Final = re.compile(r"""\"[^"]*"|(?<!\w)'[^']*'|(?<=\()[0-9a-f.:]+(?=\))""")
"""Names and values in a message, and the addresses in that of a failed connection."""
UNREADABLE: Final = "the error text cannot be read"

_MAX_CHARACTERS: Final = 10_000  # a text is cut before it is searched
_MAX_MEMBERS: Final = 100_000
_CAUSE: Final = BaseException.__dict__["__cause__"]
_CONTEXT: Final = BaseException.__dict__["__context__"]
_MAX_CAUSES: Final = 8
_SHORTEST_CAUSE_CHARACTERS: Final = 4

_CODE_LINE: Final = re.compile(
    r"\A\S{1,300}\.py:\d+(?: in [\w.<>]{1,300})?: "
    r"| \([^\s()]{1,300}\.py:\d+(?: in [\w.<>]{1,300})?\)"
)
"""A line of code: ``app/mail.py:31 in send_mail: `` before the reason, or in brackets."""
_PLACE: Final = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s'\"]+|(?<![\w.:])(?:/[\w.@%+~-]+){2,}")
"""A URL, or a path with at least two names."""


def describe(
    error: BaseException, secrets: Iterable[str | bytes] = (), *, show_values: bool = False
) -> str:
    """Return an error as redacted text.

    Onceward's own errors are shown in full, database errors with their primary message only, and
    all others with their first line: the rest may quote rows, statements and inputs. Values that
    the interpreter, a database or a validator quotes are masked, unless `show_values`.
    """
    try:
        return _description(error, secrets, show_values=show_values)
    except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
        return UNREADABLE


def _description(error: BaseException, secrets: Iterable[str | bytes], *, show_values: bool) -> str:
    error = leading_error(error)
    name = type_name(error)
    is_own = isinstance(error, OncewardError)
    primary = _primary(error)
    message = primary or _text(error)
    if not show_values:
        message = _mask_causes(error, message)
    if not is_own:
        message = _cut_to_line(message)
    if not show_values:
        from_database = primary is not None or isinstance(error, StoreError)
        message = mask_values(error, message, from_database=from_database)
    if is_own:
        return redact(message or name, secrets)
    return redact(f"{name}: {message}" if message else name, secrets)


def public_reason(error: BaseException) -> str:
    """Return an error as text that anyone may read: it quotes no name, address or value."""
    return _QUOTED.sub("…", describe(error))


def sender_reason(error: BaseException, secrets: Iterable[str | bytes] = ()) -> str:
    """Return an error as text for the sender of an event: without URLs, paths and lines of code."""
    text = _CODE_LINE.sub("", describe(error, secrets))
    return _PLACE.sub("…", text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without values and without the error's type."""
    return redact(mask_values(error, _cut_to_line(_first_argument(error))))


def _mask_causes(error: BaseException, message: str) -> str:
    """Mask what a message repeats of its causes: a whole text, or a value that a cause quotes.

    The words of the message itself stay: ``f"no amount: {cause}"``, ``f"no order {value}"``.
    """
    values: list[str] = []
    for cause in islice(_causes(error), _MAX_CAUSES):
        text = _text(cause)
        from_database = _primary(cause) is not None
        if len(text) >= _SHORTEST_CAUSE_CHARACTERS and text in message:
            masked = mask_values(cause, _cut_to_line(text), from_database=from_database)
            message = message.replace(text, masked)
        values += masked_values(cause, text, from_database=from_database)
    return mask_texts(message, values)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the cause of an error, the cause of that one, and so on, past overriding properties."""
    while True:
        cause: BaseException | None = _CAUSE.__get__(error)
        if cause is None:
            cause = _CONTEXT.__get__(error)
        if cause is None:
            return
        yield cause
        error = cause


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
