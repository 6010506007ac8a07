"""Runs jobs to their settlement: alone in a transaction, or in a batch."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple

from onceward.errors import (
    HandlerTimeout,
    LeaseLost,
    NotSettled,
    OncewardError,
    PermanentError,
    StaleEvent,
    StoreError,
    TransactionIdleTimeout,
)
from onceward.model.events import INGEST_SOURCE, Event
from onceward.model.jobs import Fail, Ignore, Job, Postpone, Reschedule
from onceward.ports import ErrorSettlement, Queue
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import describe, locate, sender_reason
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import mask_secrets, printable
from onceward.runtime.timeouts import Interrupt, run_with_deadline
from onceward.runtime.tracebacks import TracebackText, package_of, traceback_text
from onceward.settings import Settings
from onceward.work.abandoned_calls import AbandonedCalls
from onceward.work.arguments import Attempt
from onceward.work.batching import (
    SHARED_TIMEOUT_SECONDS,
    BatchOutcome,
    BatchProgress,
    HandlerLatency,
    SharedTransaction,
)
from onceward.work.connection_losses import ConnectionLosses
from onceward.work.failure_log import job_fields, log_failure, log_ignored
from onceward.work.handler_call import Abandonment, HandlerCall
from onceward.work.handler_result import ResultCheck
from onceward.work.handlers import Handler
from onceward.work.key_check import KeyCheck
from onceward.work.leases import LeasedJob
from onceward.work.loop_watch import LoopWatch
from onceward.work.misuse import explain
from onceward.work.outside_calls import AttemptCalls, NoCalls, OutsideCalls
from onceward.work.payload import decode, decode_headers
from onceward.work.settlement import SettlementPolicy, is_connection_loss
from onceward.work.staleness import make_versioned
from onceward.work.transaction import LastStep, UnitOfWork

_log = logging.getLogger("onceward.work")

_MAX_SETTLE_TRIES: Final = 5
MAX_BATCH_JOBS: Final = 1_000_000
"""More jobs than a batch can have."""
ENDS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end the task or the process. Every other error settles its job."""
_UNREADABLE: Final = "the handler raised an error that cannot be described"
_SHARED_TIMEOUT: Final = f"a handler took longer than {SHARED_TIMEOUT_SECONDS} s in a batch"

RunCall = Callable[[Handler, HandlerCall, Interrupt], Awaitable[None]]
"""Runs a handler call until the handler returns."""


class DescribedError(NamedTuple):
    """The error of a handler, in words."""

    text: str
    """To store. It may show values, if the settings say so."""
    public_text: str
    """For the sender: redacted in any case."""
    trace: TracebackText
    is_outage: bool
    """Whether the database was unavailable: the handler is not to blame."""


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
        self._settlement_policy = settlement_policy
        self._clock = clock
        self._failpoints = failpoints
        self.abandoned_calls = abandoned_calls
        self._connection_losses = ConnectionLosses()
        self._latencies = {name: HandlerLatency() for name in handlers}
        self._abandonments = {
            name: Abandonment(
                partial(abandoned_calls.add, name), partial(abandoned_calls.remove, name)
            )
            for name in handlers
        }
        self._loop_watches = {
            name: LoopWatch(name, clock, label=handler.label) for name, handler in handlers.items()
        }
        self._key_checks = {name: KeyCheck(handler) for name, handler in handlers.items()}
        self._result_checks = {
            name: ResultCheck(name, handler.function, label=handler.label)
            for name, handler in handlers.items()
        }

    def may_share(self, job: Job) -> bool:
        """Return whether a job may run in a batch: its handler allows it and is quick."""
        return (
            self._handlers[job.handler].shares_transaction and self._latencies[job.handler].is_quick
        )

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
                        on_abandoned=lambda task: self._watch_abandoned(
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
                await self._call(
                    job, unit, NoCalls.SHARED, progress.interrupt, _run_without_timeout
                )
                await unit.close()
            progress.complete_handler()
            if progress.should_commit:
                break

    def slots(self, settings: Settings) -> int:
        """Return how many jobs of one handler may run at once: in a batch, any number."""
        shares = any(handler.shares_transaction for handler in self._handlers.values())
        return MAX_BATCH_JOBS if shares else settings.workers

    async def run(self, token: str, job: Job) -> bool:
        """Run a job alone and settle it; log why, if it could not be settled.

        Return False if the attempt failed. Raise NotSettled: the caller then lets the lease expire.
        Without that pause the job would run again at once, and for ever.
        """
        started = self._clock.monotonic()
        calls = self._outside_calls.attempt(token, job, self._abandonments[job.handler])
        try:
            await self._attempt(token, job, calls)
            self._connection_losses.clear(job.id)
            return True
        except LeaseLost:
            message = "job %s: the lease was lost; nothing was committed"
            _log.warning(message, job.id, extra=job_fields(job))
        except NotSettled as error:
            message = f"job {job.id} cannot be marked as done, and nothing was committed: {error}"
            raise NotSettled(message) from error
        except StaleEvent as stale:
            self._connection_losses.clear(job.id)
            await self._ignore(token, job, stale, self._clock.monotonic() - started)
            return True
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - every error is settled
            seconds = self._clock.monotonic() - started
            self._result_checks[job.handler].check_error(error)
            # A call without a known outcome decides, even if the handler raised another error.
            await self._settle_error(token, job, calls.unresolved() or explain(error), seconds)
        return False

    async def run_inline(self, job: Job, unit: UnitOfWork, limit_seconds: float) -> None:
        """Run the handler of a job that has no lease, within a request. The caller settles it."""
        run = partial(self._run_with_timeout, limit_seconds=limit_seconds)
        await self._call(job, unit, NoCalls.INLINE, Interrupt(), run)
        await unit.close()

    def describe(self, job: Job, error: BaseException) -> DescribedError:
        """Describe the error of a job that has no lease."""
        self._result_checks[job.handler].check_error(error)
        error = explain(error)
        settlement, trace = self._decide(job, error), self._traceback(job, error)
        return DescribedError(
            text=settlement.error,
            public_text=sender_reason(error, self._settlement_policy.secrets),
            trace=trace,
            is_outage=isinstance(settlement, Postpone),
        )

    async def _attempt(self, token: str, job: Job, calls: AttemptCalls) -> None:
        job, last_step = await self._check_version(job)
        async with UnitOfWork(self._queue.begin, self._clock, self._failpoints) as unit:
            await self._call(job, unit, calls, Interrupt(), self._run_with_timeout)
            if unresolved := calls.unresolved():
                raise unresolved
            is_settled = await unit.settle(token, job.id, last_step)
            if not is_settled and not await self._queue.settle_done(token, job.id):
                raise LeaseLost

    async def _check_version(self, job: Job) -> tuple[Job, LastStep | None]:
        """Return the job and the step that writes its version, if its handler has versions.

        Raise StaleEvent if its key has already applied a newer one: no outside call is made for it.
        """
        rule = self._handlers[job.handler].version_rule
        if rule is None:
            return job, None
        body = await self._load_body(job)
        versioned = make_versioned(rule, job, body)
        await versioned.require_fresh(self._queue)
        return job._replace(body=body), versioned.advance_watermark

    async def _load_body(self, job: Job) -> bytes:
        return await self._queue.load_body(job) if job.body is None else job.body

    async def _call(
        self,
        job: Job,
        unit: UnitOfWork,
        calls: AttemptCalls | NoCalls,
        interrupt: Interrupt,
        run: RunCall,
    ) -> None:
        """Call the handler of a job and wait until it returns."""
        handler = self._handlers[job.handler]
        body = await self._load_body(job)
        self._key_checks[job.handler].check(job, body)
        call = HandlerCall(
            handler.function,
            _make_arguments(
                handler,
                Attempt(
                    _make_event(job, body, handler),
                    unit,
                    job,
                    calls=NoCalls.SHARED if handler.shares_transaction else calls,
                ),
            ),
            is_async=handler.is_async,
            loop_watch=self._loop_watches[job.handler],
            abandonment=self._abandonments[job.handler],
        )
        unit.location = call.location
        if handler.is_async:  # a thread cannot be stopped, and must not run beside its retry

            def end(error: TransactionIdleTimeout) -> None:
                interrupt.set(error.with_traceback(call.traceback()))

            unit.on_idle_timeout = end
        self._failpoints.reach("handle.started")
        started = self._clock.monotonic()
        try:
            await run(handler, call, interrupt)
        finally:
            seconds = self._clock.monotonic() - started
            self._latencies[job.handler].observe(seconds, unit.statement_seconds)
        if call.result is not None:
            self._result_checks[job.handler].check(call.result)
        self._failpoints.reach("handle.returned")

    async def _run_with_timeout(
        self,
        handler: Handler,
        call: HandlerCall,
        interrupt: Interrupt,
        *,
        limit_seconds: float = math.inf,
    ) -> None:
        """Run a handler in a task, and cancel the task when the handler's timeout expires."""
        seconds = min(handler.timeout_seconds or math.inf, limit_seconds)
        deadline = self._clock.monotonic() + seconds
        run = _run_without_timeout(handler, call, interrupt)
        traces: list[TracebackType | None] = []
        if not await run_with_deadline(
            handler.name,
            run,
            lambda: deadline - self._clock.monotonic(),
            interrupt,
            on_expired=lambda: traces.append(call.traceback()),
            on_abandoned=partial(self._watch_abandoned, handler.name),
        ):
            message = f"{handler.name} took longer than {seconds:g} s"
            raise HandlerTimeout(message).with_traceback(traces[0])

    def _watch_abandoned(self, handler: str, task: asyncio.Task[None]) -> None:
        """Count a handler that ignores its cancellation, until it ends."""
        self.abandoned_calls.add(handler)
        task.add_done_callback(lambda _: self.abandoned_calls.remove(handler))

    async def _settle_error(
        self, token: str, job: Job, error: BaseException, elapsed_seconds: float
    ) -> None:
        settlement = self._decide(job, error)
        trace = self._traceback(job, error)
        settlement = replace(settlement, traceback=trace.text)
        log_failure(job, settlement, trace.location, self._handlers[job.handler])
        await self._settle(token, job, settlement, elapsed_seconds)

    async def _ignore(
        self, token: str, job: Job, stale: StaleEvent, elapsed_seconds: float
    ) -> None:
        """Settle a job whose event is stale. Only secrets are masked: the rest are identifiers."""
        text = printable(mask_secrets(str(stale), self._settlement_policy.secrets))
        settlement = Ignore(text)
        log_ignored(job, settlement)
        await self._settle(token, job, settlement, elapsed_seconds)

    async def _settle(
        self, token: str, job: Job, settlement: ErrorSettlement, elapsed_seconds: float
    ) -> None:
        """Settle an attempt that is not done; log why, if that fails."""
        reason = ""
        for attempt in range(_MAX_SETTLE_TRIES):
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
        message = "job %s could not be settled; it runs again once the database is back: %s"
        _log.warning(message, job.id, reason, extra=LogFields(**job_fields(job), error=reason))

    def _decide(self, job: Job, error: BaseException) -> Reschedule | Postpone | Fail:
        decide = partial(
            self._settlement_policy.decide,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            handler=job.handler,
            source=job.source,
        )
        try:
            return decide(error, connection_losses=self._count_losses(job, error))
        except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
            return decide(OncewardError(_UNREADABLE))

    def _count_losses(self, job: Job, error: BaseException) -> int:
        if is_connection_loss(error):
            return self._connection_losses.add(job.id)
        self._connection_losses.clear(job.id)
        return 0

    def _traceback(self, job: Job, error: BaseException) -> TracebackText:
        package = package_of(self._handlers[job.handler].function)
        try:
            secrets = self._settlement_policy.secrets
            return traceback_text(error, package=package, secrets=secrets)
        except BaseException:  # noqa: BLE001 - the attributes of an error may be user code
            return TracebackText("", "")


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


def _make_event(job: Job, body: bytes, handler: Handler) -> Event[Any]:
    """Build the event. Raise PermanentError if the payload does not fit the handler."""
    headers = decode_headers(job.headers)
    event: Event[Any] = Event(
        id=job.event_id,
        source=job.source,
        type=job.type,
        reference=job.reference,
        received_at=job.received_at,
        body=body,
        headers=MappingProxyType(headers),
        _decode=partial(
            decode,
            body,
            handler.decoder,
            enveloped=job.source == INGEST_SOURCE,
            content_type=headers.get("content-type", ""),
        ),
    )
    if handler.model is not None:
        event.payload  # noqa: B018 - validates before the handler starts
    return event


def _make_arguments(handler: Handler, attempt: Attempt) -> dict[str, Any]:
    arguments = {}
    for name, build in handler.arguments:
        arguments[name] = build(attempt)
    return arguments


async def _run_without_timeout(handler: Handler, call: HandlerCall, _: Interrupt) -> None:
    """Run a handler in the current task. The caller enforces the timeout."""
    try:
        await call.run()
    except SystemExit as error:
        message = f"{handler.name} tried to exit the process"
        raise PermanentError(message) from error
