"""HTTP statuses: the one place where errors of the flow get theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onceward.errors import (
    InvalidEnvelope,
    InvalidFilter,
    LedgerUnavailable,
    NoEventId,
    OncewardError,
    Overloaded,
    RepeatedHeader,
    RequestRefused,
    SignatureRejected,
    UnknownSource,
    UnusableSecret,
)

RETRY_AFTER: Final = (("retry-after", "2"),)
CLOSE: Final = (("connection", "close"),)

_STATUSES: Final[Mapping[type[OncewardError], int]] = {
    RepeatedHeader: 400,
    UnusableSecret: 400,
    SignatureRejected: 401,
    UnknownSource: 404,
    NoEventId: 422,
    InvalidEnvelope: 422,
    InvalidFilter: 422,
    Overloaded: 503,
    LedgerUnavailable: 503,
}
UNAVAILABLE: Final = 503


class HttpError(RequestRefused):
    """A request is refused for a reason that only HTTP has, with the status that says so."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.status = status
        self.headers = headers
        super().__init__(message, code=code)


def status_of(error: RequestRefused) -> int:
    """Return the status with which a request is refused."""
    return error.status if isinstance(error, HttpError) else _STATUSES[type(error)]


def headers_of(error: RequestRefused) -> tuple[tuple[str, str], ...]:
    """Return the headers that belong to a refusal."""
    if isinstance(error, HttpError):
        return error.headers
    return RETRY_AFTER if status_of(error) == UNAVAILABLE else ()
