"""Runs jobs: one handler call each, under a lease and a timeout, to a settlement."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from onceward.errors import HandlerTimeout, LeaseLost, PermanentError, StoreError
from onceward.model.events import INGEST_SOURCE, Event
from onceward.model.jobs import Job
from onceward.ports import Queue
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import locate
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.timeouts import run_with_deadline
from onceward.work.batching import (
    HANDLER_SECONDS,
    HandlerLatency,
    Held,
    Progress,
    SharedTransaction,
    Turn,
)
from onceward.work.handlers import Handler
from onceward.work.payload import decode
from onceward.work.settlement import SettlementPolicy
from onceward.work.sync import HandlerCall
from onceward.work.transaction import UnitOfWork

_log = logging.getLogger("onceward.work")


_HEADERS: Final = msgspec.json.Decoder(dict[str, str])


_TOO_LONG: Final = f"a handler took longer than {HANDLER_SECONDS} s in a shared transaction"


_SETTLE_TRIES: Final = 5


Finish = Callable[["Handler", HandlerCall], Awaitable[None]]
"""Brings the run of a handler to its end."""


class JobRunner:
    """Runs jobs, one call each: under a lease and a timeout, to their settlement."""

    def __init__(
        self,
        *,
        queue: Queue,
        handlers: Mapping[str, Handler],
        settlement_policy: SettlementPolicy,
        clock: Clock,
        failpoints: Failpoints,
    ) -> None:
        self._queue = queue
        self._handlers = handlers
        self._settlement_policy = settlement_policy
        self._clock = clock
        self._failpoints = failpoints
        self._paces = {name: HandlerLatency() for name in handlers}

    def may_share(self, job: Job) -> bool:
        """Whether a job may run in one transaction with others."""
        return self._handlers[job.handler].shares_transaction and self._paces[job.handler].is_quick

    async def run_together(self, held: Sequence[Held]) -> Turn:
        """Run jobs one after the other in one transaction, and settle them with it.

        When one of them fails, nothing is committed and nothing counted: it is run again by
        itself, to an end of its own, and the others go on without it.
        """
        progress = Progress(self._clock)
        try:
            async with SharedTransaction(self._queue) as shared:
                try:
                    run = self._take_turn(held, shared, progress)
                    if not await run_with_deadline("a turn", run, progress.remaining):
                        raise HandlerTimeout(_TOO_LONG)
                finally:
                    await progress.leave()
                await shared.settle(held[: progress.count])
        except Exception as error:  # noqa: BLE001 - whoever is to blame will fail again, alone
            count = progress.count
            _log.debug("%d jobs could not be settled together: %s", count, locate(error))
            if progress.is_running:
                return Turn(apart=[held[count]], left=[*held[:count], *held[count + 1 :]])
            return Turn(apart=held[:count], left=held[count:])
        return Turn(settled=held[: progress.count], left=held[progress.count :])

    async def _take_turn(
        self, held: Sequence[Held], shared: SharedTransaction, progress: Progress
    ) -> None:
        for _, job in held:
            async with UnitOfWork(shared.join, self._clock, self._failpoints) as unit:
                progress.begin(unit)
                await self._call(job, unit, _inline)
                await unit.end()
            progress.end()
            if progress.is_enough:
                break

    async def run(self, token: str, job: Job) -> bool:
        """Run a job and settle it. False when it could not be settled: its lease will tell."""
        started = self._clock.monotonic()
        try:
            await self._attempt(token, job)
        except LeaseLost:
            _log.warning("job %s: its lease was lost; nothing was committed", job.id)
            return True
        except Exception as error:  # noqa: BLE001 - every error is settled
            return await self._settle_error(token, job, error, self._clock.monotonic() - started)
        return True

    async def _attempt(self, token: str, job: Job) -> None:
        async with UnitOfWork(self._queue.begin, self._clock, self._failpoints) as unit:
            await self._call(job, unit, self._run_within_timeout)
            if not await unit.settle(token, job.id) and not await self._queue.settle_done(
                token, job.id
            ):
                raise LeaseLost

    async def _call(self, job: Job, unit: UnitOfWork, finish: Finish) -> None:
        """Give a job to its handler, and wait for its return."""
        handler = self._handlers[job.handler]
        body = await self._queue.load_body(job) if job.body is None else job.body
        running = _prepare(handler, _event(job, body, handler), unit, job)
        unit.location = running.location
        self._failpoints.reach("handle.started")
        started = self._clock.monotonic()
        try:
            await finish(handler, running)
        finally:
            self._paces[job.handler].note(self._clock.monotonic() - started, unit.seconds)
        self._failpoints.reach("handle.returned")

    async def _run_within_timeout(self, handler: Handler, running: HandlerCall) -> None:
        """Run a handler, and cancel it when its timeout passes."""
        seconds = handler.timeout_seconds or math.inf
        deadline = self._clock.monotonic() + seconds
        run = _inline(handler, running)
        if not await run_with_deadline(
            handler.name, run, lambda: deadline - self._clock.monotonic()
        ):
            message = f"{handler.name} took longer than {seconds:g} s"
            raise HandlerTimeout(message)

    async def _settle_error(
        self, token: str, job: Job, error: Exception, elapsed_seconds: float
    ) -> bool:
        settlement = self._settlement_policy.decide(
            error, attempts=job.attempts, max_attempts=job.max_attempts
        )
        _log.info("job %s (%s): %s", job.id, job.handler, settlement.error)
        for attempt in range(_SETTLE_TRIES):
            try:
                landed = await self._queue.settle_error(token, job.id, settlement, elapsed_seconds)
            except StoreError:
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                if not landed:
                    _log.warning("job %s: its lease was lost before it was settled", job.id)
                return True
        _log.warning("job %s could not be settled; it will run again when its lease ends", job.id)
        return False


def _event(job: Job, body: bytes, handler: Handler) -> Event[Any]:
    headers = _HEADERS.decode(job.headers)
    event: Event[Any] = Event(
        id=job.event_id,
        source=job.source,
        type=job.type,
        reference=job.reference,
        received_at=job.received_at,
        body=body,
        headers=MappingProxyType(headers),
        _decode=functools.partial(
            decode,
            body,
            model=handler.model,
            enveloped=job.source == INGEST_SOURCE,
            content_type=headers.get("content-type", ""),
        ),
    )
    if handler.model is not None:
        event.payload  # noqa: B018 - validated before the handler starts
    return event


def _prepare(handler: Handler, event: Event[Any], unit: UnitOfWork, job: Job) -> HandlerCall:
    arguments = {}
    for name, build in handler.arguments:
        arguments[name] = build(event, unit, job)
    return HandlerCall(handler.function, arguments, is_async=handler.is_async)


async def _inline(handler: Handler, running: HandlerCall) -> None:
    """Run a handler in the task that is there: somebody else watches the time."""
    try:
        await running.finish()
    except SystemExit as error:
        message = f"{handler.name} tried to exit the process"
        raise PermanentError(message) from error
