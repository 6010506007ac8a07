"""Log lines about attempts that are not done: the reason, its location and the next attempt."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from onceward.model.events import Arrival, Outcome
from onceward.model.inline import LedgerJob
from onceward.model.jobs import Fail, FailureType, Ignore, Job, Postpone, Reschedule
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.runtime.redact import printable
from onceward.runtime.tracebacks import TracebackText
from onceward.work.definition.handlers import Handler

_log = logging.getLogger("onceward.work")


def job_fields(job: Job) -> LogFields:
    """Return the fields that identify a job and its event."""
    return LogFields(
        event_id=printable(job.event_id),
        source=job.source,
        type=printable(job.type),
        job=job.id,
        handler=job.handler,
        attempt=job.attempts + 1,
        max_attempts=job.max_attempts,
    )


_ON_FAILED: Final = "on_failed runs now, and the job ends with it"
_REQUEUE: Final = "requeue it when the cause is fixed"
_RESOLVE: Final = "find out whether it happened and answer, which queues the job again"
_REQUEUE_OR_CANCEL: Final = (
    "the later jobs of its ordering key wait: requeue it when the cause is fixed, or cancel it"
)


def log_failure(
    job: Job, settlement: Reschedule | Postpone | Fail, location: str, handler: Handler
) -> None:
    """Log an attempt that failed: a warning if the job runs again, else an error."""
    fields = job_fields(job)
    fields["error"] = settlement.error
    if location:
        fields |= LogFields(location=location, traceback=settlement.traceback)
    name, reason = _name(job, location, handler), reason_at(settlement.error, location)
    attempt = job.attempts + 1
    if isinstance(settlement, Fail):
        fields["failure_type"] = settlement.failure_type
        attempts = f"{attempt} attempt{'' if attempt == 1 else 's'} ({settlement.failure_type})"
        holds_key = job.ordering_key is not None and handler.rules.holds_key
        advice = _REQUEUE_OR_CANCEL if holds_key else _REQUEUE
        if settlement.failure_type is FailureType.UNKNOWN_OUTCOME:
            advice = _RESOLVE
        if handler.giving_up is not None:  # the last line of a process that dies in it
            advice = f"{_ON_FAILED}; {advice}"
        message = "%s failed for good after %s: %s; %s"
        _log.error(message, name, attempts, reason, advice, extra=fields)
        return
    fields["retry_in_seconds"] = round(settlement.delay_seconds, 1)
    delay = seconds_text(settlement.delay_seconds)
    if isinstance(settlement, Postpone):
        cause = "the database was unavailable" if settlement.is_outage else "it has to wait"
        message = "%s: %s; the attempt does not count and runs again in %s s: %s"
        _log.warning(message, name, cause, delay, reason, extra=fields)
    else:
        message = "%s failed, attempt %d of %d; retrying in %s s: %s"
        _log.warning(message, name, attempt, job.max_attempts, delay, reason, extra=fields)


def log_unsettled(job: Job, reason: str) -> None:
    """Log that the database was away when an attempt was to be settled."""
    message = "job %s could not be settled; it runs again once the database is back: %s"
    _log.warning(message, job.id, reason, extra=LogFields(**job_fields(job), error=reason))


def log_left(job: Job, reason: str, handler: Handler) -> None:
    """Log that jobs wait for the workers of another version of their handler."""
    fields = job_fields(job)
    fields["error"] = reason
    message = (
        "%s waits, like others: %s. Workers of that version run them. If its last process has "
        "ended, they end ignored within ten minutes"
    )
    _log.warning(message, _name(job, "", handler), reason, extra=fields)


def log_ignored(job: Job, settlement: Ignore) -> None:
    """Log that a job ends without being applied."""
    fields = job_fields(job)
    fields |= LogFields(error=settlement.error, failure_type=settlement.failure_type)
    message = "job %s of handler %r is ignored: %s"
    # Filters are meant to reject events, and may reject most of them.
    is_filtered = settlement.failure_type is FailureType.FILTERED
    level = logging.DEBUG if is_filtered else logging.INFO
    _log.log(level, message, job.id, job.handler, settlement.error, extra=fields)


def log_inline_failure(job: Job, error: str, trace: TracebackText, handler: Handler) -> None:
    """Log an attempt that failed within a request. The sender got the reason, too."""
    fields = job_fields(job)
    fields |= LogFields(error=error, failure_type=FailureType.INLINE)
    if trace.location:
        fields |= LogFields(location=trace.location, traceback=trace.text)
    name, reason = _name(job, trace.location, handler), reason_at(error, trace.location)
    message = (
        "%s failed within the request, attempt %d: %s; the next delivery of the event runs it "
        "again; or requeue it, if a worker runs the handler"
    )
    _log.warning(message, name, job.attempts + 1, reason, extra=fields)


def log_inline_conflict(arrival: Arrival, failed: Sequence[LedgerJob]) -> None:
    """Log a delivery that was not run, although its event failed within a request before.

    The sender got 202, so that it stops: nothing but this line says that the event is not done.
    """
    event_id = printable(arrival.event_id)
    job = failed[0]
    fields = LogFields(event_id=event_id, source=arrival.source, type=printable(arrival.type))
    fields |= LogFields(job=job.id, handler=job.handler, outcome=Outcome.CONFLICT)
    message = (
        "source %r: event %s failed, and its retry differs in its body: it is a conflict, was not "
        "run and got 202, so the sender stops; requeue job %s to run the first body, or accept the "
        "delivery to run this one. If a field changes with each retry, name it in volatile_fields "
        "of the source"
    )
    _log.warning(message, arrival.source, event_id, job.id, extra=fields)


def _name(job: Job, location: str, handler: Handler) -> str:
    """Name a job; without a line in the user's code, with the handler's definition."""
    return f"job {job.id} of {f'handler {job.handler!r}' if location else handler.label}"


def reason_at(error: str, location: str) -> str:
    """Return an error with the line that raised it, unless the error names that line."""
    return f"{error} ({location})" if location and location not in error else error
