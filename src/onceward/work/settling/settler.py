"""Settles attempts that are not done: decides, logs and writes how they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from onceward.errors import (
    EventFiltered,
    OncewardError,
    OtherVersionWants,
    StaleEvent,
    StoreError,
)
from onceward.model.jobs import Fail, FailureType, Ignore, Job, Postpone, Reschedule
from onceward.ports import ErrorSettlement, Queue
from onceward.runtime.error_text import describe
from onceward.runtime.redact import mask_secrets, printable
from onceward.runtime.tracebacks import TracebackText, package_of, traceback_text
from onceward.work.definition.handlers import Handler
from onceward.work.running.connection_losses import ConnectionLosses
from onceward.work.settling.failure_log import (
    job_fields,
    log_failure,
    log_ignored,
    log_left,
    log_unsettled,
)
from onceward.work.settling.settlement import SettlementPolicy, is_connection_loss

_log = logging.getLogger("onceward.work")

MAX_SETTLE_TRIES: Final = 5
OTHER_VERSION_SECONDS: Final = 15.0, 120.0
"""How long a job is put back for another version: a quarter of its age, within these bounds."""
_CHANGED_ROWS: Final = (
    "the handler changed rows of Onceward's tables in its transaction, so that the job could not "
    "be marked as done; what it wrote was rolled back. Change only tables of your own"
)
_UNREADABLE: Final = "the handler raised an error that cannot be described"


class Settler:
    """Settles the attempts of one process that raised an error, or whose event is ignored."""

    def __init__(
        self, queue: Queue, handlers: Mapping[str, Handler], policy: SettlementPolicy
    ) -> None:
        self._queue = queue
        self._handlers = handlers
        self._policy = policy
        self._connection_losses = ConnectionLosses()
        self._leaving: set[str] = set()
        """The handlers that have left a job to another version of themselves."""

    def end(self, job: Job, error: BaseException) -> Reschedule | Postpone | Fail:
        """Log an attempt that raised an error, and return its end: retry, postpone or fail."""
        settlement, trace = self.decide(job, error), self.traceback(job, error)
        settlement = replace(settlement, traceback=trace.text)
        log_failure(job, settlement, trace.location, self._handlers[job.handler])
        return settlement

    async def ignore(
        self, token: str, job: Job, unwanted: StaleEvent | EventFiltered, elapsed_seconds: float
    ) -> None:
        """Settle a job whose event is stale or filtered. Secrets are masked: the rest are ids."""
        self.succeeded(job)
        text = printable(mask_secrets(str(unwanted), self._policy.secrets))
        is_stale = isinstance(unwanted, StaleEvent)
        kind = FailureType.STALE if is_stale else FailureType.FILTERED
        settlement = Ignore(text, failure_type=kind)
        log_ignored(job, settlement)
        await self.settle(token, job, settlement, elapsed_seconds)

    async def leave(
        self,
        token: str,
        job: Job,
        other: OtherVersionWants,
        elapsed_seconds: float,
        *,
        age_seconds: float,
    ) -> None:
        """Put a job back for the workers of another version. Log the first one of a handler.

        `age_seconds` is the time since its event was received: the older, the later it is due.
        """
        if job.handler not in self._leaving:
            self._leaving.add(job.handler)
            log_left(job, str(other), self._handlers[job.handler])
        shortest, longest = OTHER_VERSION_SECONDS
        seconds = min(max(age_seconds / 4, shortest), longest)
        settlement = Postpone(seconds, str(other), is_outage=False)
        await self.settle(token, job, settlement, elapsed_seconds)

    def succeeded(self, job: Job) -> None:
        """Forget the connections that a job lost."""
        self._connection_losses.clear(job)

    async def settle(
        self, token: str, job: Job, settlement: ErrorSettlement, elapsed_seconds: float
    ) -> None:
        """Settle an attempt that is not done; log why, if that fails."""
        reason = ""
        for attempt in range(MAX_SETTLE_TRIES):
            try:
                landed = await self._queue.settle_error(token, job.id, settlement, elapsed_seconds)
            except StoreError as failure:
                reason = describe(failure)
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                if not landed:
                    message = "job %s: the lease was lost before the job was settled"
                    _log.warning(message, job.id, extra=job_fields(job))
                return
        log_unsettled(job, reason)

    async def end_lost(self, token: str, job: Job, elapsed_seconds: float) -> None:
        """Settle a job whose transaction found no lease.

        If the lease is there after all, the handler hid it by changing Onceward's rows: without
        this end the job would run again at once, and for ever. A lost lease refuses the settlement.
        """
        failure = Fail(FailureType.PERMANENT, _CHANGED_ROWS)
        try:
            landed = await self._queue.settle_error(token, job.id, failure, elapsed_seconds)
        except StoreError:
            landed = False
        if landed:
            log_failure(job, failure, "", self._handlers[job.handler])
        else:
            message = "job %s: the lease was lost; nothing was committed"
            _log.warning(message, job.id, extra=job_fields(job))

    def decide(self, job: Job, error: BaseException) -> Reschedule | Postpone | Fail:
        """Return the settlement of an attempt that raised an error."""
        decide = partial(
            self._policy.decide,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            handler=job.handler,
            source=job.source,
        )
        try:
            return decide(error, connection_losses=self._count_losses(job, error))
        except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
            return decide(OncewardError(_UNREADABLE))

    def describe(self, error: BaseException) -> str:
        """Return the text of an error, redacted as it is stored."""
        try:
            return describe(error, self._policy.secrets, show_values=self._policy.show_values)
        except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
            return _UNREADABLE

    def _count_losses(self, job: Job, error: BaseException) -> int:
        if is_connection_loss(error):
            return self._connection_losses.add(job)
        self._connection_losses.clear(job)
        return 0

    def traceback(self, job: Job, error: BaseException) -> TracebackText:
        """Return the traceback of an error, from the handler's package on."""
        package = package_of(self._handlers[job.handler].function)
        try:
            return traceback_text(error, package=package, secrets=self._policy.secrets)
        except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
            return TracebackText("", "")
