"""HTTP errors: the one table that maps errors to statuses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.errors import (
    EventBusy,
    InvalidEnvelope,
    InvalidFilter,
    LedgerUnavailable,
    NewerSchema,
    NoEventId,
    NotFound,
    NotInState,
    Overloaded,
    ProcessingFailed,
    ProcessingPaused,
    ProofMissing,
    RepeatedHeader,
    RequestRefused,
    SignatureRejected,
    StoreError,
    UnknownSource,
    UnusableSecret,
)

ExtraHeaders = tuple[tuple[str, str], ...]
"""Headers of a response beside those that all responses have."""

CLOSE: Final = (("connection", "close"),)
RETRY_AFTER: Final = (("retry-after", "2"),)
_RETRY_AFTER_PAUSE: Final = (("retry-after", "60"),)


class _Entry(NamedTuple):
    """A status, with the code and message for errors that have none of their own."""

    status: int
    code: str = ""
    message: str = ""
    headers: ExtraHeaders = ()


_UNAVAILABLE: Final = _Entry(
    503, LedgerUnavailable.code, "The ledger is unavailable. Retry later.", RETRY_AFTER
)
NEWER_SCHEMA: Final = (
    "A newer version of Onceward migrated the database. Stop this process and start that version."
)
_TABLE: Final[Mapping[type[Exception], _Entry]] = {
    RepeatedHeader: _Entry(400),
    UnusableSecret: _Entry(400),
    SignatureRejected: _Entry(401),
    ProofMissing: _Entry(401, headers=CLOSE),
    UnknownSource: _Entry(404),
    NotFound: _Entry(404, "not_found"),
    NotInState: _Entry(409, "not_in_state"),
    NoEventId: _Entry(422),
    InvalidEnvelope: _Entry(422),
    InvalidFilter: _Entry(422),
    ProcessingFailed: _Entry(500),
    ProcessingPaused: _Entry(503, headers=_RETRY_AFTER_PAUSE),
    EventBusy: _UNAVAILABLE,
    Overloaded: _UNAVAILABLE,
    LedgerUnavailable: _UNAVAILABLE,
    NewerSchema: _Entry(503, LedgerUnavailable.code, NEWER_SCHEMA, RETRY_AFTER),
    StoreError: _UNAVAILABLE,
    TimeoutError: _UNAVAILABLE,
}
"""A RequestRefused has its own code and message; the table supplies those of other errors."""
MAPPED: Final = (RequestRefused, *_TABLE)
"""Errors with a status of their own; every other error is a 500."""


class HttpError(RequestRefused):
    """A refusal for a reason that exists only in HTTP, such as a header or a method."""

    def __init__(self, status: int, code: str, message: str, *, headers: ExtraHeaders = ()) -> None:
        self.status = status
        self.headers = headers
        super().__init__(message, code=code)


class AuthenticationFailed(HttpError):
    """A refusal for want of a valid token, with the reason, for operators."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: ExtraHeaders, reason: str
    ) -> None:
        self.reason = reason
        super().__init__(status, code, message, headers=headers)


def error_fields(error: Exception) -> tuple[int, str, str, ExtraHeaders]:
    """Return the status, code, message and headers of the response to a mapped error."""
    if isinstance(error, HttpError):
        return error.status, error.code, error.message, error.headers
    status, code, message, headers = _lookup(type(error))
    if isinstance(error, ProcessingFailed) and error.retry_after_seconds is not None:
        headers = (("retry-after", str(math.ceil(error.retry_after_seconds))),)
    if isinstance(error, RequestRefused):
        return status, error.code, error.message, headers
    return status, code, message or str(error), headers


def status_of(error: Exception) -> int:
    """Return the status of a mapped error."""
    return error.status if isinstance(error, HttpError) else _lookup(type(error)).status


def _lookup(kind: type[Exception]) -> _Entry:
    """Return the entry of the error's own class, or else of its nearest base class."""
    for base in kind.__mro__:
        if entry := _TABLE.get(base):
            return entry
    raise LookupError(f"{kind.__name__} has no status")
