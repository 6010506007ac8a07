"""Log lines about attempts that are not done: the reason, its location and the next attempt."""

from __future__ import annotations

import logging
from typing import Final

from onceward.model.jobs import Fail, FailureType, Ignore, Job, Postpone, Reschedule
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.runtime.redact import printable
from onceward.runtime.tracebacks import TracebackText
from onceward.work.handlers import Handler

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
    name, reason = _name(job, location, handler), _reason(settlement.error, location)
    attempt = job.attempts + 1
    if isinstance(settlement, Fail):
        fields["failure_type"] = settlement.failure_type
        attempts = f"{attempt} attempt{'' if attempt == 1 else 's'} ({settlement.failure_type})"
        holds_key = job.ordering_key is not None and handler.rules.holds_key
        advice = _REQUEUE_OR_CANCEL if holds_key else _REQUEUE
        if settlement.failure_type is FailureType.UNKNOWN_OUTCOME:
            advice = _RESOLVE
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


def log_ignored(job: Job, settlement: Ignore) -> None:
    """Log that a job ends without being applied."""
    fields = job_fields(job)
    fields |= LogFields(error=settlement.error, failure_type=settlement.failure_type)
    message = "job %s of handler %r is ignored: %s"
    _log.info(message, job.id, job.handler, settlement.error, extra=fields)


def log_inline_failure(job: Job, error: str, trace: TracebackText, handler: Handler) -> None:
    """Log an attempt that failed within a request. The sender got the reason, too."""
    fields = job_fields(job)
    fields |= LogFields(error=error, failure_type=FailureType.INLINE)
    if trace.location:
        fields |= LogFields(location=trace.location, traceback=trace.text)
    name, reason = _name(job, trace.location, handler), _reason(error, trace.location)
    message = (
        "%s failed within the request, attempt %d: %s; the next delivery of the event runs it "
        "again, or requeue it for a worker"
    )
    _log.warning(message, name, job.attempts + 1, reason, extra=fields)


def _name(job: Job, location: str, handler: Handler) -> str:
    """Name a job; without a line in the user's code, with the handler's definition."""
    return f"job {job.id} of {f'handler {job.handler!r}' if location else handler.label}"


def _reason(error: str, location: str) -> str:
    return f"{error} ({location})" if location and location not in error else error
