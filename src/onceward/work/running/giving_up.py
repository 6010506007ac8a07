"""Ends jobs as failed, with the function `on_failed` in the transaction that ends them.

Decision 0030 has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from onceward.errors import (
    PermanentError,
    RetryLater,
    StoreUnavailable,
    WorkerDied,
)
from onceward.model.jobs import WORKER_DIED, Fail, FailureType, Job
from onceward.ports import Queue
from onceward.runtime.clock import Clock
from onceward.runtime.database_errors import is_conflict, is_disk_full
from onceward.runtime.error_text import leading_error
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.work.definition.arguments import Attempt
from onceward.work.definition.giving_up import GivingUp
from onceward.work.definition.handlers import Handler
from onceward.work.outside.calls import NoCalls
from onceward.work.running.events import make_failed_event
from onceward.work.running.handler_calls import ENDS, HandlerCalls
from onceward.work.running.misuse import explain
from onceward.work.running.transaction import UnitOfWork
from onceward.work.settling.failure_log import (
    job_fields,
    log_failure,
    log_unsettled,
    reason_at,
)
from onceward.work.settling.settlement import MAX_FREE_LOSSES, is_connection_loss
from onceward.work.settling.settler import MAX_SETTLE_TRIES, Settler

_NO_RETRY: Final = "RetryLater, but a job that has failed is not retried; raise it in the handler"

_log = logging.getLogger("onceward.work")


class GivingUpJobs:
    """Ends jobs as failed. A fault of `on_failed` is recorded, and changes nothing else."""

    def __init__(
        self,
        *,
        queue: Queue,
        handlers: Mapping[str, Handler],
        calls: HandlerCalls,
        settler: Settler,
        clock: Clock,
        failpoints: Failpoints,
    ) -> None:
        self._queue = queue
        self._handlers = handlers
        self._calls = calls
        self._settler = settler
        self._clock = clock
        self._failpoints = failpoints

    async def end_dead(self, token: str, job: Job) -> None:
        """End a job whose worker died in its last attempt, without running its handler."""
        failure = Fail(FailureType.EXHAUSTED, WORKER_DIED, counts_attempt=False)
        handler = self._handlers[job.handler]
        log_failure(job._replace(attempts=job.attempts - 1), failure, "", handler)
        await self.end(token, job, failure, WorkerDied(WORKER_DIED), 0.0)

    async def end(
        self, token: str, job: Job, failure: Fail, error: BaseException, elapsed_seconds: float
    ) -> None:
        """End a job as failed because of an error, and run `on_failed` with it.

        An outage, a full disk and a deadlock are not faults of `on_failed`: it is tried again, up
        to MAX_SETTLE_TRIES times. After that, the job runs again when its lease ends.
        """
        giving_up = self._handlers[job.handler].giving_up
        reason = ""
        for number in range(MAX_SETTLE_TRIES):
            try:
                async with UnitOfWork(self._queue.begin, self._clock, self._failpoints) as unit:
                    if giving_up is not None:
                        await self._call(giving_up, job, unit, error)
                    landed = await unit.settle_failed(token, job.id, failure, elapsed_seconds)
            except ENDS:
                raise
            except BaseException as raised:  # noqa: BLE001 - the job ends in any case
                if giving_up is not None and not _is_blameless(raised, number):
                    giving_up, failure = None, self._with_fault(job, failure, explain(raised))
                    continue
                reason = self._settler.describe(raised)
                await asyncio.sleep(0.1 * 2**number)
            else:
                # The lease was lost, or the job need not fail: settle_error tells them apart.
                if not landed:
                    await self._settler.settle(token, job, failure, elapsed_seconds)
                return
        log_unsettled(job, reason)

    async def _call(
        self, giving_up: GivingUp, job: Job, unit: UnitOfWork, error: BaseException
    ) -> None:
        handler = self._handlers[job.handler]
        try:
            body = await self._calls.load_body(job)
        except PermanentError:  # it is no longer stored
            body = None
        event = make_failed_event(job, body, handler)
        attempt = Attempt([event], unit, job, calls=NoCalls.SHARED, error=error)
        await self._calls.give_up(handler, giving_up, attempt)

    def _with_fault(self, job: Job, failure: Fail, fault: BaseException) -> Fail:
        """Log a fault of `on_failed`, and return the failure with it."""
        text = _NO_RETRY if isinstance(fault, RetryLater) else self._settler.describe(fault)
        trace = self._settler.traceback(job, fault)
        message = "job %s of handler %r fails without on_failed, which was rolled back: %s"
        fields = LogFields(**job_fields(job), error=text)
        if trace.location:
            fields |= LogFields(location=trace.location, traceback=trace.text)
        reason = reason_at(text, trace.location)
        _log.error(message, job.id, job.handler, reason, extra=fields)
        return replace(failure, error=f"{failure.error}; on_failed raised {text}")


def _is_blameless(error: BaseException, tries: int) -> bool:
    """Return whether `on_failed` may succeed if it runs again, after as many earlier tries.

    Lost connections and deadlocks in a row are its fault.
    """
    leading = leading_error(error)
    if is_connection_loss(error) or is_conflict(leading):
        return tries < MAX_FREE_LOSSES
    return isinstance(leading, StoreUnavailable) or is_disk_full(leading)
