"""Calls of handlers: their arguments, their time limit, and the checks before and after."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple

from onceward.errors import HandlerTimeout, PermanentError, TransactionIdleTimeout
from onceward.model.events import Event
from onceward.model.jobs import Job
from onceward.ports import Queue
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.timeouts import Interrupt, run_with_deadline
from onceward.work.claiming.key_check import KeyCheck
from onceward.work.definition.arguments import Attempt
from onceward.work.definition.filters import Condition
from onceward.work.definition.giving_up import GivingUp
from onceward.work.definition.handlers import Handler
from onceward.work.outside.calls import AttemptCalls, NoCalls
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.batching import HandlerLatency
from onceward.work.running.conditions import condition_call, require_matching, require_true
from onceward.work.running.events import make_arguments, make_event
from onceward.work.running.handler_call import Abandonment, HandlerCall
from onceward.work.running.handler_result import ResultCheck
from onceward.work.running.loop_watch import LoopWatch
from onceward.work.running.transaction import UnitOfWork

RunCall = Callable[[Handler, HandlerCall, Interrupt], Awaitable[None]]
"""Runs a handler call until the handler returns."""


ENDS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end the task or the process. Every other error settles its job."""


class TimeLimit(NamedTuple):
    """The time that a call of a handler or of its filter function may take."""

    seconds: float
    note: str = ""
    """The name of the limit, and what to do about it, for the error."""


class HandlerCalls:
    """Calls the handlers of one process."""

    def __init__(
        self,
        *,
        queue: Queue,
        handlers: Mapping[str, Handler],
        clock: Clock,
        failpoints: Failpoints,
        abandoned_calls: AbandonedCalls,
    ) -> None:
        self._queue = queue
        self._handlers = handlers
        self._clock = clock
        self._failpoints = failpoints
        self._abandoned_calls = abandoned_calls
        self._latencies = {name: HandlerLatency() for name in handlers}
        self.abandonments = {
            name: Abandonment(
                partial(abandoned_calls.add, name), partial(abandoned_calls.remove, name)
            )
            for name in handlers
        }
        self._loop_watches = {
            name: LoopWatch(name, clock, label=handler.label) for name, handler in handlers.items()
        }
        self._key_checks = {name: KeyCheck(handler) for name, handler in handlers.items()}
        self.result_checks = {
            name: ResultCheck(name, handler.function, label=handler.label)
            for name, handler in handlers.items()
        }
        self._giving_up_checks = {
            name: ResultCheck(
                name,
                handler.giving_up.function,
                label=f"on_failed of {name!r}",
                subject="on_failed",
                advice="the job fails in any case; write what is worth keeping with tx",
            )
            for name, handler in handlers.items()
            if handler.giving_up is not None
        }

    def is_quick(self, handler: str) -> bool:
        """Return whether the calls of a handler are short enough to share a transaction."""
        return self._latencies[handler].is_quick

    async def load_body(self, job: Job) -> bytes:
        """Return the body of a job's event. Raise PermanentError if it is no longer stored."""
        return await self._queue.load_body(job) if job.body is None else job.body

    async def require_wanted(self, job: Job, limit: TimeLimit | None = None) -> Job:
        """Ask the filter of a job's handler, if it has one. Return the job with its body.

        Raise EventFiltered if the handler does not want the event, and OtherVersionWants if another
        version of it does.
        """
        handler = self._handlers[job.handler]
        if not handler.has_filter:
            return job
        body = await self.load_body(job)
        if handler.filter:
            await require_matching(handler.filter, job, body, self._queue)
        if handler.condition is not None:
            event = make_event(job, body, handler)
            await self._call_condition(handler, handler.condition, event, limit)
        return job._replace(body=body)

    async def _call_condition(
        self, handler: Handler, condition: Condition, event: Event[Any], limit: TimeLimit | None
    ) -> None:
        call = condition_call(
            condition, event, self._loop_watches[handler.name], self.abandonments[handler.name]
        )
        seconds, note = limit or _own_limit(handler)
        limit = TimeLimit(seconds, f"{note} in {condition.label}")
        await self.run_with_timeout(handler, call, Interrupt(), limit=limit)
        require_true(condition, call.result)

    async def call(
        self,
        job: Job,
        unit: UnitOfWork,
        calls: AttemptCalls | NoCalls,
        interrupt: Interrupt,
        run: RunCall,
    ) -> None:
        """Call the handler of a job and wait until it returns."""
        handler = self._handlers[job.handler]
        body = await self.load_body(job)
        self._key_checks[job.handler].check(job, body)
        calls = NoCalls.SHARED if handler.shares_transaction else calls
        attempt = Attempt([make_event(job, body, handler)], unit, job, calls=calls)
        await self._run(handler, attempt, interrupt, run)

    async def call_with_all(
        self, handler: Handler, events: Sequence[Event[Any]], first: Job, unit: UnitOfWork
    ) -> None:
        """Call a handler once with many events, of which the `first` is that of a job."""
        attempt = Attempt(events, unit, first, calls=NoCalls.SHARED)
        await self._run(handler, attempt, Interrupt(), self.run_with_timeout)

    async def give_up(self, handler: Handler, giving_up: GivingUp, attempt: Attempt) -> None:
        """Call the function `on_failed` of a handler and wait until it returns."""
        interrupt = Interrupt()
        call = self._prepare(handler, giving_up, attempt, interrupt)
        await self.run_with_timeout(handler, call, interrupt, name=f"on_failed of {handler.name}")
        if call.result is not None:
            self._giving_up_checks[handler.name].check(call.result)

    async def _run(
        self, handler: Handler, attempt: Attempt, interrupt: Interrupt, run: RunCall
    ) -> None:
        unit = attempt.unit
        call = self._prepare(handler, handler, attempt, interrupt)
        self._failpoints.reach("handle.started")
        started = self._clock.monotonic()
        try:
            await run(handler, call, interrupt)
        finally:
            seconds = self._clock.monotonic() - started
            self._latencies[handler.name].observe(seconds, unit.statement_seconds)
        if call.result is not None:
            self.result_checks[handler.name].check(call.result)
        self._failpoints.reach("handle.returned")

    def _prepare(
        self,
        handler: Handler,
        called: Handler | GivingUp,
        attempt: Attempt,
        interrupt: Interrupt,
    ) -> HandlerCall:
        """Return a call whose place in the code the transaction knows."""
        unit = attempt.unit
        call = HandlerCall(
            called.function,
            make_arguments(called.arguments, attempt),
            is_async=called.is_async,
            loop_watch=self._loop_watches[handler.name],
            abandonment=self.abandonments[handler.name],
        )
        unit.location = call.location
        if called.is_async:  # a thread cannot be stopped, and must not run beside its retry

            def end(error: TransactionIdleTimeout) -> None:
                interrupt.set(error.with_traceback(call.traceback()))

            unit.on_idle_timeout = end
        return call

    async def run_with_timeout(
        self,
        handler: Handler,
        call: HandlerCall,
        interrupt: Interrupt,
        *,
        limit: TimeLimit | None = None,
        name: str = "",
    ) -> None:
        """Run a handler in a task, and cancel the task at the limit, or at its own timeout.

        `name` is that of the function, if it is not the handler's.
        """
        name = name or handler.name
        seconds, note = limit or _own_limit(handler)
        deadline = self._clock.monotonic() + seconds
        run = run_without_timeout(handler, call, interrupt)
        traces: list[TracebackType | None] = []
        if not await run_with_deadline(
            name,
            run,
            lambda: deadline - self._clock.monotonic(),
            interrupt,
            on_expired=lambda: traces.append(call.traceback()),
            on_abandoned=partial(self.watch_abandoned, handler.name),
        ):
            message = f"{name} took longer than {seconds:g} s{note}"
            raise HandlerTimeout(message).with_traceback(traces[0])

    def watch_abandoned(self, handler: str, task: asyncio.Task[None]) -> None:
        """Count a handler that ignores its cancellation, until it ends."""
        self._abandoned_calls.add(handler)
        task.add_done_callback(lambda _: self._abandoned_calls.remove(handler))


def _own_limit(handler: Handler) -> TimeLimit:
    return TimeLimit(handler.timeout_seconds or math.inf)


async def run_without_timeout(handler: Handler, call: HandlerCall, _: Interrupt) -> None:
    """Run a handler in the current task. The caller enforces the timeout."""
    try:
        await call.run()
    except (SystemExit, KeyboardInterrupt) as error:
        message = f"{handler.name} tried to exit the process"
        raise PermanentError(message) from error
