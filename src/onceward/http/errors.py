"""HTTP errors: the one table that maps errors to statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.errors import (
    InvalidEnvelope,
    InvalidFilter,
    LedgerUnavailable,
    NoEventId,
    NotFound,
    NotInState,
    Overloaded,
    RepeatedHeader,
    RequestRefused,
    SignatureRejected,
    StoreError,
    UnknownSource,
    UnusableSecret,
)

ErrorHeaders = tuple[tuple[str, str], ...]

RETRY_AFTER: Final = (("retry-after", "2"),)
CLOSE: Final = (("connection", "close"),)
UNAVAILABLE: Final = 503


class _Row(NamedTuple):
    """A status, with a code and a message for errors that carry none for clients."""

    status: int
    code: str | None = None
    message: str | None = None


_LEDGER_UNAVAILABLE: Final = _Row(
    UNAVAILABLE, LedgerUnavailable.code, "The ledger is unavailable. Retry later."
)
_TABLE: Final[Mapping[type[Exception], _Row]] = {
    RepeatedHeader: _Row(400),
    UnusableSecret: _Row(400),
    SignatureRejected: _Row(401),
    UnknownSource: _Row(404),
    NotFound: _Row(404, "not_found"),
    NotInState: _Row(409, "not_in_state"),
    NoEventId: _Row(422),
    InvalidEnvelope: _Row(422),
    InvalidFilter: _Row(422),
    Overloaded: _Row(UNAVAILABLE),
    LedgerUnavailable: _Row(UNAVAILABLE),
    StoreError: _LEDGER_UNAVAILABLE,
    TimeoutError: _LEDGER_UNAVAILABLE,
}
MAPPED: Final = (RequestRefused, *_TABLE)
"""Errors with a status of their own; every other error is a 500."""


class HttpError(RequestRefused):
    """A refusal for a reason that exists only in HTTP, such as a header or a method."""

    def __init__(self, status: int, code: str, message: str, *, headers: ErrorHeaders = ()) -> None:
        self.status = status
        self.headers = headers
        super().__init__(message, code=code)


def to_http_error(error: Exception) -> HttpError:
    """Return the HTTP error that a mapped error becomes."""
    if isinstance(error, HttpError):
        return error
    status, code, message = _row(type(error))
    if isinstance(error, RequestRefused):
        code, message = error.code, error.message
    headers = RETRY_AFTER if status == UNAVAILABLE else ()
    return HttpError(status, code or "", message or str(error), headers=headers)


def status_of(error: Exception) -> int:
    """Return the status of a mapped error."""
    return error.status if isinstance(error, HttpError) else _row(type(error)).status


def _row(kind: type[Exception]) -> _Row:
    """Return the row of the error's own class, or else of its nearest base class."""
    for base in kind.__mro__:
        if row := _TABLE.get(base):
            return row
    raise LookupError(f"{kind.__name__} has no status")
