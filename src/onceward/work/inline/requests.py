"""Requests to inline sources: their handlers run, and commit, within the request.

A request waits for the other deliveries of its events without a connection, and looks at the ledger
again when it is its turn. Decision 0023 has the rules.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from msgspec.structs import replace

from onceward.errors import (
    ConnectionLost,
    EventBusy,
    EventChanged,
    EventFiltered,
    HandlerTimeout,
    LedgerUnavailable,
    NotSettled,
    OtherVersionWants,
    OutcomeUnknown,
    Overloaded,
    ProcessingFailed,
    RequestRefused,
    StoreError,
)
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.model.inline import (
    BUSY,
    InlineFailure,
    InlineResult,
    InlineSettlement,
    InlineStatus,
    LedgerEvent,
)
from onceward.ports import InlineLedger, InlineTransaction, LockedEvents
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import describe
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import as_sentence
from onceward.settings import Settings
from onceward.work.definition.handlers import Handler
from onceward.work.inline.joined_transaction import JoinedTransaction
from onceward.work.inline.key_locks import KeyLocks
from onceward.work.inline.load import InlineLoad
from onceward.work.inline.plan import PlannedJob, plan_jobs, recorded_status, require_running
from onceward.work.running.handler_calls import ENDS, TimeLimit
from onceward.work.running.runner import DescribedError, JobRunner
from onceward.work.running.transaction import UnitOfWork
from onceward.work.settling.failure_log import log_inline_conflict, log_inline_failure

_log = logging.getLogger("onceward.work")

FIRST_WAIT_SECONDS: Final = 0.02
"""The pause before the second look at an event that another process has; it doubles each time."""
MAX_WAIT_SECONDS: Final = 0.5
MAX_CHANGES: Final = 5
"""How often an event may change while its handlers run, before the sender is asked to retry."""

_TOO_SLOW: Final = 'shorten it, raise the setting, or use mode="background"'
_WAITED: Final = "The request has waited too long for its turn. Retry later."
_SLOTS_BUSY: Final = "Too many requests run their handlers now. Retry later."
_OTHER_VERSION: Final = "Another version of the app wants this event. Retry later."
_ENDED: Final = (
    "the database ended the transaction while the handler ran: it was idle for longer than "
    "lease_seconds, or the server stops"
)
_UNAVAILABLE: Final = "The ledger is unavailable. Retry later."

Record = Callable[[Sequence[Arrival]], Awaitable[Sequence[Receipt]]]
"""Records deliveries for which no handler runs, and returns their receipts. Raises RequestRefused.
"""


class _HandlersFailed(Exception):
    """The writes of all handlers of a request are rolled back.

    The `culprit` is the handler that raised the error, or None if the commit did.
    """

    def __init__(
        self,
        jobs: Sequence[PlannedJob],
        culprit: PlannedJob | None,
        error: BaseException,
        elapsed_seconds: float,
    ) -> None:
        self.jobs = jobs
        self.culprit = culprit
        self.error = error
        self.elapsed_seconds = elapsed_seconds


class InlineRunner:
    """Processes the requests to the inline sources of one process."""

    def __init__(
        self,
        *,
        ledger: InlineLedger,
        record: Record,
        runner: JobRunner,
        handlers: Mapping[str, Handler],
        settings: Settings,
        clock: Clock,
        failpoints: Failpoints,
        worker: str,
        on_outage: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._on_outage = on_outage
        self._record = record
        self._runner = runner
        self._handlers = handlers
        self._settings = settings
        self._clock = clock
        self._failpoints = failpoints
        self._worker = worker
        self._locks = KeyLocks()
        self._slots = asyncio.Semaphore(settings.inline_requests)
        self._load = InlineLoad(clock, slots=settings.inline_requests)
        self._pending_requests = 0
        self._pending_bytes = 0

    async def process(self, arrivals: Sequence[Arrival]) -> list[InlineResult]:
        """Run the handlers of a request, and record its events in the same transaction.

        Raise ProcessingFailed, ProcessingPaused, EventBusy, Overloaded or LedgerUnavailable.
        """
        deadline = self._clock.monotonic() + self._settings.inline_timeout_seconds
        keys = [(arrival.source, arrival.event_id) for arrival in arrivals]
        size = sum(arrival.size for arrival in arrivals)
        longest, is_full = self._load.longest(), self._slots.locked()
        self._admit(size)
        try:
            async with self._entered(self._locks.hold(keys), deadline, BUSY):
                return await self._process_in_turn(arrivals, deadline)
        except RequestRefused as refused:
            refused.event_id = arrivals[0].event_id if arrivals else ""
            if refused.code == EventBusy.code:
                refused.hint = self._load.explain(longest, is_full=is_full)
            raise
        finally:
            self._pending_requests -= 1
            self._pending_bytes -= size

    def _admit(self, size: int) -> None:
        """Count a request that waits or runs. Raise Overloaded beyond the limits."""
        if self._pending_requests and (
            self._pending_requests >= self._settings.max_pending_events
            or self._pending_bytes + size > self._settings.max_pending_bytes
        ):
            raise Overloaded("Too many requests wait for their handlers. Retry later.")
        self._pending_requests += 1
        self._pending_bytes += size

    async def _process_in_turn(
        self, arrivals: Sequence[Arrival], deadline: float
    ) -> list[InlineResult]:
        """Process a request once no other process has its events, or raise EventBusy."""
        changes, wait_seconds = 0, FIRST_WAIT_SECONDS
        while True:
            try:
                async with self._entered(self._slots, deadline, _SLOTS_BUSY):
                    return await self._process(arrivals, deadline)
            except EventChanged:
                changes += 1
                if changes == MAX_CHANGES:
                    raise EventBusy(BUSY) from None
            except EventBusy:
                if self._remaining(deadline) <= wait_seconds:
                    raise
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(2 * wait_seconds, MAX_WAIT_SECONDS)

    async def _process(self, arrivals: Sequence[Arrival], deadline: float) -> list[InlineResult]:
        try:
            settlement, ran = await self._run(arrivals, deadline)
            if settlement is None:
                settlement = InlineSettlement([*await self._record(arrivals)])
            return await self._results(arrivals, settlement, ran)
        except _HandlersFailed as failed:
            raise await self._fail(arrivals, failed) from None
        except (NotSettled, StoreError) as error:
            raise self._outage(describe(error)) from error

    async def _run(
        self, arrivals: Sequence[Arrival], deadline: float
    ) -> tuple[InlineSettlement | None, set[str]]:
        """Run and commit the handlers of a request; return the events that ran beside the result.

        Return None if none of its events has a handler to run.
        """
        async with self._ledger.lock_events(arrivals) as events:
            jobs = plan_jobs(arrivals, events.view, self._handlers, events.now)
            if not jobs:
                return None, set()
            abandoned_calls = self._runner.abandoned_calls
            abandoned_calls.report()  # a process without a worker has nobody else who does
            require_running(jobs, events.view.pauses, abandoned_calls.paused)
            self._require_time(deadline)
            jobs = await self._apply_conditions(jobs, deadline)
            settlement = await self._run_handlers(events, arrivals, jobs, deadline)
        ran = {planned.job.event_id for planned in jobs if planned.run.filtered is None}
        return settlement, ran

    async def _apply_conditions(
        self, jobs: Sequence[PlannedJob], deadline: float
    ) -> list[PlannedJob]:
        """Ask the filters of handlers before any of the handlers runs."""
        started = self._clock.monotonic()
        applied: list[PlannedJob] = []
        for planned in jobs:
            run = planned.run
            if not self._handlers[run.handler].has_filter:
                applied.append(planned)
                continue
            try:
                limit = self._limit(run.handler, round(self._remaining(deadline), 1))
                with self._load.running(planned.job, self._settings.inline_timeout_seconds):
                    await self._runner.require_wanted(planned.job, limit)
            except OtherVersionWants as other:
                raise LedgerUnavailable(_OTHER_VERSION, code=EventBusy.code) from other
            except EventFiltered as filtered:
                run = replace(run, filtered=str(filtered))
            except ENDS:
                raise
            except BaseException as error:  # noqa: BLE001 - every error is a failure
                raise _HandlersFailed(jobs, planned, error, self._since(started)) from None
            applied.append(planned._replace(run=run))
        return applied

    async def _run_handlers(
        self,
        events: LockedEvents,
        arrivals: Sequence[Arrival],
        jobs: Sequence[PlannedJob],
        deadline: float,
    ) -> InlineSettlement:
        """Run handlers one after the other in one transaction, then settle and commit it."""
        started = self._clock.monotonic()
        async with JoinedTransaction[InlineTransaction](events.begin) as joined:
            for planned in (each for each in jobs if each.run.filtered is None):
                try:
                    limit = self._limit(planned.job.handler, round(self._remaining(deadline), 1))
                    async with UnitOfWork(joined.join, self._clock, self._failpoints) as unit:
                        with self._load.running(planned.job, self._settings.inline_timeout_seconds):
                            await self._runner.run_inline(planned.job, unit, limit)
                except ENDS:
                    raise
                except BaseException as error:  # noqa: BLE001 - every error is a failure
                    # After a freeze of the process, its timeout is no fault of the handler.
                    cause = ConnectionLost(_ENDED) if events.is_lost() else error
                    raise _HandlersFailed(jobs, planned, cause, self._since(started)) from None
            try:
                transaction = await joined.open()
                settlement = await transaction.settle_inline(
                    arrivals, [planned.run for planned in jobs]
                )
                await transaction.commit()
            except (*ENDS, EventChanged, NotSettled, OutcomeUnknown):
                raise
            except BaseException as error:  # noqa: BLE001 - every error is a failure
                raise _HandlersFailed(jobs, None, error, self._since(started)) from None
        return settlement

    async def _results(
        self, arrivals: Sequence[Arrival], settlement: InlineSettlement, ran: set[str]
    ) -> list[InlineResult]:
        """Return the result of each event. Those that did not run are looked up after the commit.

        An event that ran is `processed` only if no other job of it waits for a worker or a person.
        Raise EventChanged if one of them should run after all.
        """
        others = [arrival for arrival in arrivals if arrival.event_id not in ran]
        view = await self._ledger.look(others) if others else None
        recorded = view.events if view else ()
        found = {arrival.event_id: event for arrival, event in zip(others, recorded, strict=True)}
        results = []
        for position, arrival in enumerate(arrivals):
            receipt = settlement.receipts[position]
            if arrival.event_id not in ran:
                event = found[arrival.event_id]
                status = recorded_status(event, receipt)
                _warn_if_not_run(arrival, event, receipt)
            elif receipt.outcome is Outcome.CONFLICT or position in settlement.unfinished:
                status = InlineStatus.ACCEPTED
            else:
                status = InlineStatus.PROCESSED
            results.append(InlineResult(arrival.event_id, status, receipt))
        return results

    async def _fail(self, arrivals: Sequence[Arrival], failed: _HandlersFailed) -> RequestRefused:
        """Record that the handlers of a request failed, and return the error for its sender."""
        blamed = failed.culprit or failed.jobs[0]
        described = self._runner.describe(blamed.job, failed.error)
        if described.is_outage:
            return self._outage(described.text)
        failures = [_failure(planned, failed, described) for planned in failed.jobs]
        try:
            counted = await self._ledger.fail_inline(arrivals, failures, self._worker)
        except StoreError as error:
            counted = {}
            message = "a failure within a request could not be recorded: %s"
            reason = describe(error)
            _log.warning(message, reason, extra=LogFields(error=reason))
        known = max(blamed.job.id, 0), blamed.job.attempts + 1
        job_id, number = counted.get(blamed.run, known)
        job = blamed.job._replace(id=job_id, attempts=number - 1)
        log_inline_failure(job, described.text, described.trace, self._handlers[job.handler])
        return ProcessingFailed(
            described.public_text, retry_after_seconds=described.retry_after_seconds
        )

    @asynccontextmanager
    async def _entered(
        self, context: AbstractAsyncContextManager[Any], deadline: float, busy: str
    ) -> AsyncIterator[None]:
        """Enter a context before the deadline. Raise EventBusy if that takes longer."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(max(self._remaining(deadline), 0)):
                    await stack.enter_async_context(context)
            except TimeoutError:
                raise EventBusy(busy) from None
            yield

    def _require_time(self, deadline: float) -> None:
        """Raise LedgerUnavailable if a request has waited for too long to start its handlers.

        A handler that worked in an earlier request must not fail for want of time in this one.
        EventBusy would make the request wait again.
        """
        if self._remaining(deadline) < self._settings.inline_timeout_seconds / 2:
            raise LedgerUnavailable(_WAITED, code=EventBusy.code)

    def _limit(self, handler: str, remaining_seconds: float) -> TimeLimit:
        """Return the time that a handler has: its own timeout, or the rest of the request's time.

        Raise HandlerTimeout if a request with many events has no time for its next handler.
        """
        whole = self._settings.inline_timeout_seconds
        own = self._handlers[handler].timeout_seconds or math.inf
        if remaining_seconds <= 0:
            message = f"the handlers of the request took longer than {whole:g} s"
            raise HandlerTimeout(f"{message} (inline_timeout_seconds): {_TOO_SLOW}")
        if own <= remaining_seconds:
            default = self._settings.handler_timeout_seconds
            return TimeLimit(
                own, f" ({'handler_' if math.isclose(own, default) else ''}timeout_seconds)"
            )
        part = "" if remaining_seconds >= whole else "the rest of "
        return TimeLimit(remaining_seconds, f" ({part}inline_timeout_seconds): {_TOO_SLOW}")

    def _outage(self, reason: str) -> LedgerUnavailable:
        """Count an outage, and return the error for the sender. The reason is for the log alone."""
        self._on_outage()
        refused = LedgerUnavailable(_UNAVAILABLE)
        refused.hint = as_sentence(reason)
        return refused

    def _remaining(self, deadline: float) -> float:
        return deadline - self._clock.monotonic()

    def _since(self, started: float) -> float:
        return self._clock.monotonic() - started


def _warn_if_not_run(arrival: Arrival, event: LedgerEvent | None, receipt: Receipt) -> None:
    """Log a retry that a sender wants to run, but that differs from what it sent before."""
    if event is not None and receipt.outcome is Outcome.CONFLICT:
        failed = [job for job in event.jobs if job.has_failed_inline]
        if failed:
            log_inline_conflict(arrival, failed)


def _failure(
    planned: PlannedJob, failed: _HandlersFailed, described: DescribedError
) -> InlineFailure:
    """Return why one of the handlers was rolled back: its own error, or that of another one."""
    error, trace, elapsed_seconds = described.text, described.trace.text, failed.elapsed_seconds
    if failed.culprit not in (None, planned):
        error, trace = f"Rolled back, because the handler {failed.culprit.job.handler} failed", ""
    return InlineFailure(planned.run, error, trace, elapsed_seconds)
