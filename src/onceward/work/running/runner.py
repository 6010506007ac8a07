"""Runs jobs to their settlement: alone in a transaction, or in a batch."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypedDict

from onceward.errors import (
    EventFiltered,
    HandlerTimeout,
    LeaseLost,
    NotSettled,
    OtherVersionWants,
    RetryLater,
    StaleEvent,
)
from onceward.model.jobs import Fail, Job, Postpone
from onceward.ports import Queue
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import leading_error, locate, sender_reason
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.runtime.timeouts import Interrupt, run_with_deadline
from onceward.runtime.tracebacks import TracebackText
from onceward.settings import Settings
from onceward.work.claiming.leases import LeasedJob
from onceward.work.definition.handlers import Handler
from onceward.work.outside.calls import AttemptCalls, NoCalls, OutsideCalls
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.batching import (
    SHARED_TIMEOUT_SECONDS,
    BatchOutcome,
    BatchProgress,
    SharedTransaction,
)
from onceward.work.running.event_batches import EventBatches
from onceward.work.running.giving_up import GivingUpJobs
from onceward.work.running.handler_calls import (
    ENDS,
    HandlerCalls,
    TimeLimit,
    run_without_timeout,
)
from onceward.work.running.misuse import explain
from onceward.work.running.staleness import make_versioned
from onceward.work.running.transaction import LastStep, UnitOfWork
from onceward.work.settling.settlement import SettlementPolicy, requested_seconds
from onceward.work.settling.settler import Settler

_log = logging.getLogger("onceward.work")

MAX_BATCH_JOBS: Final = 1_000_000
"""More jobs than a batch can have."""
_ROLLED_BACK: Final = "the handler had run, and what it wrote in tx was rolled back"
_SHARED_TIMEOUT: Final = f"a handler took longer than {SHARED_TIMEOUT_SECONDS} s in a batch"


class DescribedError(NamedTuple):
    """The error of a handler, in words."""

    text: str
    """To store. It may show values, if the settings say so."""
    public_text: str
    """For the sender: redacted in any case."""
    trace: TracebackText
    is_outage: bool
    """Whether the database was unavailable: the handler is not to blame."""
    retry_after_seconds: float | None
    """The delay that the handler asked for with RetryLater."""


class _Parts(TypedDict):
    """The objects that the ways to run and to end a job have in common."""

    queue: Queue
    handlers: Mapping[str, Handler]
    calls: HandlerCalls
    settler: Settler
    clock: Clock
    failpoints: Failpoints


class JobRunner:
    """Runs leased jobs: calls their handlers and settles them."""

    def __init__(
        self,
        *,
        queue: Queue,
        handlers: Mapping[str, Handler],
        settlement_policy: SettlementPolicy,
        clock: Clock,
        failpoints: Failpoints,
        abandoned_calls: AbandonedCalls,
        outside_calls: OutsideCalls,
    ) -> None:
        self._queue = queue
        self._outside_calls = outside_calls
        self._handlers = handlers
        self._secrets = settlement_policy.secrets
        self._clock = clock
        self._failpoints = failpoints
        self.abandoned_calls = abandoned_calls
        self._calls = HandlerCalls(
            queue=queue,
            handlers=handlers,
            clock=clock,
            failpoints=failpoints,
            abandoned_calls=abandoned_calls,
        )
        self._settler = Settler(queue, handlers, settlement_policy)
        parts = _Parts(
            queue=queue,
            handlers=handlers,
            calls=self._calls,
            settler=self._settler,
            clock=clock,
            failpoints=failpoints,
        )
        self._event_batches = EventBatches(**parts)
        self._giving_up = GivingUpJobs(**parts)

    @property
    def max_events(self) -> dict[str, int]:
        """The number of events that one call may get, of each handler of batches."""
        handlers = self._handlers.values()
        return {each.name: each.max_events for each in handlers if each.max_events}

    @property
    def capped_handlers(self) -> frozenset[str]:
        """The handlers that run only so many jobs at once, over all processes."""
        handlers = self._handlers.values()
        return frozenset(each.name for each in handlers if each.rules.concurrency is not None)

    def may_share(self, job: Job) -> bool:
        """Return whether a job may run in a batch: its handler allows it and is quick."""
        handler = self._handlers[job.handler]
        return handler.shares_transaction and self._calls.is_quick(job.handler)

    async def run_batch(self, jobs: Sequence[LeasedJob]) -> BatchOutcome:
        """Run jobs one after the other in one transaction, and settle them with its commit.

        A failure commits nothing and counts no attempt: the job that caused it runs again alone.
        """
        progress = BatchProgress(self._clock)
        try:
            async with SharedTransaction(self._queue) as shared:
                try:
                    run = self._run_handlers(jobs, shared, progress)
                    if not await run_with_deadline(
                        "a batch",
                        run,
                        progress.remaining_seconds,
                        progress.interrupt,
                        on_abandoned=lambda task: self._calls.watch_abandoned(
                            jobs[progress.completed].job.handler, task
                        ),
                    ):
                        raise HandlerTimeout(_SHARED_TIMEOUT)
                finally:
                    await progress.close()
                await shared.settle(jobs[: progress.completed])
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - the job that caused it fails again, alone
            return _failed_batch(jobs, progress, error)
        return BatchOutcome(
            settled=jobs[: progress.completed], remaining=jobs[progress.completed :]
        )

    async def _run_handlers(
        self, jobs: Sequence[LeasedJob], shared: SharedTransaction, progress: BatchProgress
    ) -> None:
        for _, job in jobs:
            async with UnitOfWork(shared.join, self._clock, self._failpoints) as unit:
                progress.start_handler(unit)
                job = await self._calls.require_wanted(job)  # noqa: PLW2901 - with its body
                await self._calls.call(
                    job, unit, NoCalls.SHARED, progress.interrupt, run_without_timeout
                )
                await unit.close()
            progress.complete_handler()
            if progress.should_commit:
                break

    def slots(self, settings: Settings) -> int:
        """Return how many jobs of one handler may run at once: in a batch, any number."""
        shares = any(handler.shares_transaction for handler in self._handlers.values())
        return MAX_BATCH_JOBS if shares or self.max_events else settings.workers

    async def run_events(self, jobs: Sequence[LeasedJob]) -> BatchOutcome:
        """Run jobs of one handler in one call, and settle them with its commit."""
        return await self._event_batches.run(jobs)

    async def run(self, token: str, job: Job) -> bool:
        """Run a job alone and settle it; log why, if it could not be settled.

        Return False if the attempt failed. Raise NotSettled: the caller then lets the lease expire.
        Without that pause the job would run again at once, and for ever.
        """
        if job.gives_up:
            await self._giving_up.end_dead(token, job)
            return False
        started = self._clock.monotonic()
        calls = self._outside_calls.attempt(token, job, self._calls.abandonments[job.handler])
        try:
            await self._attempt(token, job, calls)
            self._settler.succeeded(job)
            return True
        except LeaseLost:
            await self._settler.end_lost(token, job, self._clock.monotonic() - started)
        except NotSettled as error:
            message = f"job {job.id} cannot be marked as done, and nothing was committed: {error}"
            raise NotSettled(message) from error
        except OtherVersionWants as other:
            seconds = self._clock.monotonic() - started
            age_seconds = self._clock.now() - job.received_at.timestamp()
            await self._settler.leave(token, job, other, seconds, age_seconds=age_seconds)
            return True
        except (StaleEvent, EventFiltered) as unwanted:
            await self._settler.ignore(token, job, unwanted, self._clock.monotonic() - started)
            return True
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - every error is settled
            seconds = self._clock.monotonic() - started
            self._calls.result_checks[job.handler].check_error(error)
            # A call without a known outcome decides, even if the handler raised another error.
            await self._settle_error(token, job, calls.unresolved() or explain(error), seconds)
        return False

    async def _settle_error(
        self, token: str, job: Job, error: BaseException, elapsed_seconds: float
    ) -> None:
        settlement = self._settler.end(job, error)
        if isinstance(settlement, Fail) and self._handlers[job.handler].giving_up is not None:
            await self._giving_up.end(token, job, settlement, error, elapsed_seconds)
        else:
            await self._settler.settle(token, job, settlement, elapsed_seconds)

    async def run_inline(self, job: Job, unit: UnitOfWork, limit: TimeLimit) -> None:
        """Run the handler of a job that has no lease, within a request. The caller settles it."""
        run = partial(self._calls.run_with_timeout, limit=limit)
        await self._calls.call(job, unit, NoCalls.INLINE, Interrupt(), run)
        await unit.close()

    async def require_wanted(self, job: Job, limit: TimeLimit) -> None:
        """Ask the filter of a job that has no lease. Raise EventFiltered or OtherVersionWants."""
        await self._calls.require_wanted(job, limit)

    def describe(self, job: Job, error: BaseException) -> DescribedError:
        """Describe the error of a job that has no lease, because it ran within a request."""
        self._calls.result_checks[job.handler].check_error(error, is_inline=True)
        error = explain(error)
        settlement, trace = self._settler.decide(job, error), self._settler.traceback(job, error)
        return DescribedError(
            text=settlement.error,
            public_text=sender_reason(error, self._secrets),
            trace=trace,
            is_outage=isinstance(settlement, Postpone),
            retry_after_seconds=_retry_after_seconds(error),
        )

    async def _attempt(self, token: str, job: Job, calls: AttemptCalls) -> None:
        job = await self._calls.require_wanted(job)
        job, last_step = await self._check_version(job)
        async with UnitOfWork(self._queue.begin, self._clock, self._failpoints) as unit:
            await self._calls.call(job, unit, calls, Interrupt(), self._calls.run_with_timeout)
            if unresolved := calls.unresolved():
                raise unresolved
            try:
                is_settled = await unit.settle(token, job.id, last_step)
            except StaleEvent as stale:
                raise StaleEvent(f"{stale}; {_ROLLED_BACK}") from None
            if not is_settled and not await self._queue.settle_done(token, job.id):
                raise LeaseLost

    async def _check_version(self, job: Job) -> tuple[Job, LastStep | None]:
        """Return the job and the step that writes its version, if its handler has versions.

        Raise StaleEvent if its key has already applied a newer one: no outside call is made for it.
        """
        rule = self._handlers[job.handler].version_rule
        if rule is None:
            return job, None
        body = await self._calls.load_body(job)
        versioned = make_versioned(rule, job, body)
        await versioned.require_fresh(self._queue)
        return job._replace(body=body), versioned.advance_watermark


def _retry_after_seconds(error: BaseException) -> float | None:
    """Return the delay that a handler asked for, or None."""
    try:
        leading = leading_error(error)
        seconds = requested_seconds(leading) if isinstance(leading, RetryLater) else math.nan
    except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
        return None
    return seconds if seconds > 0 else None  # NaN is not


def _failed_batch(
    jobs: Sequence[LeasedJob], progress: BatchProgress, error: BaseException
) -> BatchOutcome:
    """Return the outcome of a batch that committed nothing.

    An error outside a handler, in the settle or the commit, may be due to any job that ran.
    """
    count = progress.completed
    fields = LogFields(count=count)
    _log.debug("a batch failed after %d jobs: %s", count, locate(error), extra=fields)
    if progress.is_in_handler:
        return BatchOutcome(
            retry_alone=[jobs[count]], remaining=[*jobs[:count], *jobs[count + 1 :]]
        )
    return BatchOutcome(retry_alone=jobs[:count], remaining=jobs[count:])
