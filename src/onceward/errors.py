"""The errors of Onceward. `http/` adds those that only HTTP has.

::

    OncewardError
    ├── ConfigurationError            the configuration cannot work; lists every fault
    │   └── MigrationsPending         the database lacks migrations
    ├── RequestRefused                a request is not accepted; `http/` maps it to a status
    │   ├── SignatureRejected         the request does not verify; the sender never learns why
    │   │   └── ProofMissing          it has no header that could prove it
    │   ├── RepeatedHeader            a header that must be unique occurs twice
    │   ├── NoEventId                 the request has no usable event id
    │   ├── InvalidEnvelope           a body for POST /events/ingest is not an event
    │   ├── UnknownSource             no source has this name
    │   ├── InvalidFilter             a filter is unknown, or its value is invalid
    │   ├── UnusableSecret            a provisioned secret does not fit the source
    │   ├── ProcessingFailed          a handler of an inline source raised an error
    │   ├── ProcessingPaused          a handler of an inline source must not run now
    │   ├── EventBusy                 another delivery of the event is being processed
    │   ├── Overloaded                too much is pending; the sender should retry
    │   └── LedgerUnavailable         the commit failed or was too slow; the sender should retry
    ├── StoreError                    the database did not do what was asked
    │   ├── StoreUnavailable          unreachable, full or busy: nothing was written
    │   │   ├── StoreBlocked          reached, but locked or read-only; says what to do
    │   │   │   ├── LedgerReplaced    deleted or replaced while it was open: restart
    │   │   │   └── NewerSchema       a newer version migrated it: start that version
    │   │   └── ConnectionLost        in the middle of a transaction, which was rolled back
    │   ├── OutcomeUnknown            the connection was lost during the commit
    │   └── Unwritable                the database refuses this value; others can be written
    ├── ArchiveError                  the archive did not do what was asked
    │   ├── ArchiveUnavailable        its folder or object store cannot be used now
    │   ├── NotArchived               a payload that would be dropped is in no recorded file
    │   └── ArchiveDamaged            a file is missing, or is not what was recorded
    ├── PreparationFailed             a function of ``inbox.at_start`` raised an error
    ├── LeaseLost                     the lease ended too early; nothing was committed
    ├── StaleEvent                    the key of the event has applied a newer version
    ├── EventFiltered                 the filter of the handler does not want the event
    │   └── OtherVersionWants         but that of another version of the handler does
    ├── NotSettled                    a trigger keeps a job from ending; nothing was committed
    ├── EventChanged                  an event changed while its handlers ran; nothing was committed
    ├── OperatorError                 an operator's action is not possible
    │   ├── NotFound                  no such row
    │   └── NotInState                the row's state does not allow the action
    ├── HandlerTimeout                the handler exceeded its timeout
    ├── TransactionIdleTimeout        the handler held SQLite's write transaction for too long
    ├── NeedsOwnTransaction           a statement cannot run in a shared transaction
    ├── EffectNotApplied              an outside call was certainly not applied
    ├── EffectUnknown                 nobody knows whether an outside call was applied
    ├── EffectPending                 another attempt's outside call may still be under way
    ├── WorkerDied                    the worker of the last attempt died; given to `on_failed`
    ├── RetryLater                    raised by a handler: run the job again after a delay
    └── PermanentError                raised by a handler: retrying cannot help
        ├── MalformedPayload          the payload does not fit; names the field
        └── TransactionMisuse         the handler used `tx`, `effects` or `event` wrongly
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from enum import StrEnum


class OncewardError(Exception):
    """The root of the tree."""


class ConfigurationError(OncewardError):
    """The configuration cannot work. Lists every fault, so that all can be fixed at once."""

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class MigrationsPending(ConfigurationError):
    """The database lacks migrations, and this process does not apply them.

    `state` says which database lacks what, and `command` applies them.
    """

    def __init__(self, state: str, command: str = "onceward migrate app.py") -> None:
        self.state = state
        super().__init__(f"{state}. Run: {command}")


class RequestRefused(OncewardError):
    """A request is not accepted. `code` is for programs, `message` for people."""

    code = "refused"
    hint = ""
    """A sentence that follows the message in the log, for the operators alone."""
    event_id = ""
    handler = ""
    """The event and the handler of an inline source, for the log alone."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        self.message = message
        self.code = code or self.code
        super().__init__(message)


class RepeatedHeader(RequestRefused):
    """A header that must be unique occurs more than once."""

    code = "repeated_header"


class NoEventId(RequestRefused):
    """A genuine request has no usable event id, so it cannot be recorded."""

    code = "no_event_id"


class InvalidEnvelope(RequestRefused):
    """A body for ``POST /events/ingest`` is not an event. The code names the faulty member."""


class UnknownSource(RequestRefused):
    """No source has this name. `name` and `known` are for operators, never for the sender."""

    code = "unknown_source"

    def __init__(self, name: str, known: Collection[str]) -> None:
        self.name = name
        self.known = known
        super().__init__("No source has this name. Check the URL.")


class InvalidFilter(RequestRefused):
    """A filter is unknown to the list, or has an invalid value."""

    code = "bad_filter"


class UnusableSecret(RequestRefused):
    """A sender provisioned a secret that does not fit its source."""

    code = "unusable_secret"


class ProcessingFailed(RequestRefused):
    """A handler that ran within the request failed. Nothing of it was committed.

    The message is the reason, redacted. A handler that raised RetryLater asks the sender to wait.
    """

    code = "Processing failed"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class ProcessingPaused(RequestRefused):
    """An operator has paused the source, or a handler that would run within the request."""

    code = "paused"


class EventBusy(RequestRefused):
    """Another delivery of the event is being processed. The sender should retry."""

    code = "busy"


class Overloaded(RequestRefused):
    """Too many deliveries are pending. The sender should retry."""

    code = "overloaded"


class LedgerUnavailable(RequestRefused):
    """The commit failed or was too slow; events may be recorded. The sender should retry."""

    code = "unavailable"


class RejectionCause(StrEnum):
    """Why a request did not verify. `Scheme.causes` gives the order of a scheme's checks."""

    MISSING = "missing"
    """The request carries no proof."""
    MALFORMED = "malformed"
    """The proof cannot be parsed."""
    TIMESTAMP = "timestamp"
    """The signed time is outside the tolerance."""
    MISMATCH = "mismatch"
    """None of the secrets made the signature."""
    WRONG_TARGET = "wrong_target"
    """The proof is valid, but for another request."""


class SignatureRejected(RequestRefused):
    """A request does not verify. `check` and `cause` are for operators, never for the sender."""

    code = "signature_rejected"

    def __init__(self, check: str, cause: RejectionCause) -> None:
        self.check = check
        self.cause = cause
        super().__init__("The signature was not accepted.")


class ProofMissing(SignatureRejected):
    """A request has none of the headers that could prove it, so its body is not read."""


class StoreError(OncewardError):
    """The database did not do what was asked."""


class StoreUnavailable(StoreError):
    """The database is unreachable, full or busy. Nothing was written."""


class StoreBlocked(StoreUnavailable):
    """The database was reached, but cannot be used now. The message says what to do."""


class LedgerReplaced(StoreBlocked):
    """The ledger was deleted or replaced while it was open. This process cannot save anything."""


class NewerSchema(StoreBlocked):
    """A newer version migrated the database. This process must neither record nor claim."""


class ConnectionLost(StoreUnavailable):
    """The connection was lost in the middle of a transaction. Nothing was committed."""


class OutcomeUnknown(StoreError):
    """The connection was lost during the commit. Only the database knows whether it succeeded."""


class Unwritable(StoreError):
    """The database refuses this value. Nothing was written."""


class ArchiveError(OncewardError):
    """The archive did not do what was asked. The ledger still has what it had."""


class ArchiveUnavailable(ArchiveError):
    """The folder or object store of the archive cannot be used now. Says what to check."""


class NotArchived(ArchiveError):
    """A payload that would be dropped is in no recorded file. Nothing was dropped."""


class ArchiveDamaged(ArchiveError):
    """An archived file is missing, or its content is not what was recorded."""


class NeedsOwnTransaction(OncewardError):
    """A statement would affect more than its job; the job runs again in its own transaction."""


class PreparationFailed(OncewardError):
    """A function of ``inbox.at_start`` raised an error, which is the cause of this one."""


class LeaseLost(OncewardError):
    """The lease on a job ended before the job was settled. Nothing was committed."""


class StaleEvent(OncewardError):
    """The key of an event has applied a newer version. The job is ignored, nothing is committed."""


class EventFiltered(OncewardError):
    """The filter of a handler does not want an event. The job is ignored."""


class OtherVersionWants(EventFiltered):
    """Another version of the handler wants the event. The job waits for a worker of that one."""


class NotSettled(OncewardError):
    """The database did not keep the end of a job, whose lease is held. Nothing was committed."""


class EventChanged(OncewardError):
    """An event was recorded or settled while its handlers ran. Nothing was committed."""


class OperatorError(OncewardError):
    """An operator's action is not possible."""


class NotFound(OperatorError):
    """There is no such row."""


class NotInState(OperatorError):
    """The row's state does not allow the action."""


class HandlerTimeout(OncewardError):
    """A handler exceeded its timeout."""


class TransactionIdleTimeout(OncewardError):
    """A handler held SQLite's only write transaction for too long; it was rolled back."""


class EffectNotApplied(OncewardError):
    """Raised by an effect's function: the call was certainly not applied, and may be repeated."""


class EffectUnknown(OncewardError):
    """Nobody knows whether an outside call was applied. The job cannot be done before that."""

    def __init__(self, message: str, *, effect: int, needs_operator: bool) -> None:
        self.effect = effect
        self.needs_operator = needs_operator
        """Whether only a person can find out: the effect has no policy that could."""
        super().__init__(message)


class EffectPending(OncewardError):
    """Another attempt's outside call may be under way for `seconds`. The job waits until then."""

    def __init__(self, message: str, *, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(message)


class WorkerDied(OncewardError):
    """The worker of a job's last attempt died. Given to `on_failed`."""


class RetryLater(OncewardError):
    """Raise it in a handler to run the job again after `seconds`, a number or a timedelta.

    If `seconds` is not above 0, the job waits as after any other error.
    """

    def __init__(
        self, seconds: float | timedelta, reason: str = "the handler asked for a retry"
    ) -> None:
        self.seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        super().__init__(reason)


class PermanentError(OncewardError):
    """Raise it in a handler when a retry cannot help: the job fails at once."""


class MalformedPayload(PermanentError):
    """The payload does not fit the handler. The message names the field, never its value."""


class TransactionMisuse(PermanentError):
    """The handler used `tx`, `effects`, `event` or RetryLater in a way that cannot work."""
