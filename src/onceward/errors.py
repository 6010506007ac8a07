"""Every error that Onceward raises, and how they hang together.

::

    OncewardError
    ├── ConfigurationError        what the user wrote cannot work: all faults at once
    ├── RequestRefused            a request is answered with 4xx or 503, and why
    │   └── SignatureRejected     401: which check failed is for the operator, never for the sender
    ├── StoreError                the database did not do what was asked
    │   ├── StoreUnavailable      it cannot be reached, is full or is busy: nothing was written
    │   ├── OutcomeUnknown        the connection was lost in the commit: nobody knows
    │   └── Unwritable            it refuses what it was given; what came along can still be written
    ├── NotShared                 a statement cannot be run where jobs share a transaction
    ├── LeaseLost                 the job belongs to another worker now; nothing was committed
    ├── OperatorError             an operator's act cannot be done
    │   ├── NotFound              no such thing
    │   └── NotInState            it is not in a state that allows the act
    ├── HandlerTimeout            the handler took longer than it may
    ├── TransactionHeld           the handler kept SQLite's only write transaction for too long
    ├── RetryLater                raised by a handler: run again after so many seconds
    └── PermanentError            raised by a handler: running again would not help
        ├── MalformedPayload      the payload is not what the handler needs, and which field
        └── TransactionMisuse     the handler ended its transaction by itself
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class OncewardError(Exception):
    """The root of the tree."""


class ConfigurationError(OncewardError):
    """What the user wrote cannot work. Holds every fault found, so that all can be mended."""

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class RequestRefused(OncewardError):
    """A request is answered with `status`; `code` is for programs, `message` for people."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.headers = tuple(headers)
        super().__init__(message)


class Step(StrEnum):
    """What is checked of a proof, in this order as far as a scheme has it."""

    FOUND = "found"
    """It is where it belongs."""
    READ = "read"
    """It is written as it should be."""
    TIME = "time"
    """Its time is near enough."""
    MADE = "made"
    """It was made with one of the secrets."""
    MEANT = "meant"
    """It is for this request."""


class SignatureRejected(RequestRefused):
    """A request did not verify. `check` says what failed; the sender is told no more than 401."""

    def __init__(self, check: str, step: Step) -> None:
        self.check = check
        self.step = step
        super().__init__(401, "signature_rejected", "The signature was not accepted.")


class StoreError(OncewardError):
    """The database did not do what was asked."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, is full or is busy. Nothing was written."""


class OutcomeUnknown(StoreError):
    """The connection was lost while committing. Written or not: only the ledger can tell."""


class Unwritable(StoreError):
    """The database refuses what it was given. Nothing was written."""


class NotShared(OncewardError):
    """A statement would reach beyond its job; the job is run again in a transaction of its own."""


class LeaseLost(OncewardError):
    """The lease on a job ended before it was settled. Nothing was committed."""


class OperatorError(OncewardError):
    """An operator's act cannot be done."""


class NotFound(OperatorError):
    """There is no such thing."""


class NotInState(OperatorError):
    """The thing is not in a state that allows the act."""


class HandlerTimeout(OncewardError):
    """A handler took longer than its timeout."""


class TransactionHeld(OncewardError):
    """A handler kept SQLite's only write transaction open for too long; it was rolled back."""


class RetryLater(OncewardError):
    """Raise it in a handler to have the job run again after `seconds`."""

    def __init__(self, seconds: float, reason: str = "asked to be run later") -> None:
        self.seconds = seconds
        super().__init__(reason)


class PermanentError(OncewardError):
    """Raise it in a handler when running again would not help: the job fails at once."""


class MalformedPayload(PermanentError):
    """The payload is not what the handler needs. The text names the field, never its value."""


class TransactionMisuse(PermanentError):
    """The handler did with its transaction what only Onceward may do."""
