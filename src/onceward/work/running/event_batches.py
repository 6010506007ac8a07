"""Calls with many events: one transaction for all of them, and all their jobs done with it.

Decision 0029 has the reasons. Jobs that share a transaction, each with a call of its own, are in
`batching`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from onceward.errors import StoreError
from onceward.model.events import Event
from onceward.ports import Queue
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.work.claiming.leases import LeasedJob, ids_by_lease
from onceward.work.definition.handlers import Handler
from onceward.work.running.batching import BatchOutcome
from onceward.work.running.events import make_event
from onceward.work.running.handler_calls import ENDS, HandlerCalls
from onceward.work.running.misuse import explain
from onceward.work.running.transaction import UnitOfWork
from onceward.work.settling.failure_log import reason_at
from onceward.work.settling.settler import Settler

_log = logging.getLogger("onceward.work")

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""The bodies of one call, together. A larger one is in a call by itself."""

_EVENTS_BETWEEN_PAUSES: Final = 16
"""Events that are decoded before others get the event loop."""


@dataclass(slots=True)
class _Selection:
    """The jobs of a call, by what happens to them."""

    jobs: list[LeasedJob] = field(default_factory=list)
    events: list[Event[Any]] = field(default_factory=list)
    unusable: list[LeasedJob] = field(default_factory=list)
    """Each ends alone: its payload cannot be decoded or does not fit, or the filter rejects it."""
    remaining: Sequence[LeasedJob] = ()
    """They would exceed the limit in bytes."""


class EventBatches:
    """Runs jobs of one handler in one call."""

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

    async def run(self, jobs: Sequence[LeasedJob]) -> BatchOutcome:
        """Call the handler with the events of jobs, and settle them with the commit.

        A failure commits nothing and counts no attempt: each job runs again alone.
        """
        handler = self._handlers[jobs[0].job.handler]
        try:
            selection = await self._select(handler, jobs)
            if selection.jobs:
                await self._run(handler, selection)
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - the job that caused it fails again, alone
            self._log_failure(handler, jobs, explain(error))
            return BatchOutcome(retry_alone=jobs)
        return BatchOutcome(
            selection.jobs, unusable=selection.unusable, remaining=selection.remaining
        )

    async def _run(self, handler: Handler, selection: _Selection) -> None:
        first = selection.jobs[0].job
        async with UnitOfWork(self._queue.begin, self._clock, self._failpoints) as unit:
            await self._calls.call_with_all(handler, selection.events, first, unit)
            await unit.settle_all(ids_by_lease(selection.jobs))

    async def _select(self, handler: Handler, jobs: Sequence[LeasedJob]) -> _Selection:
        """Load, filter and decode the events of jobs, as many as fit in memory."""
        selection = _Selection()
        size = 0
        for place, leased in enumerate(jobs):
            if place % _EVENTS_BETWEEN_PAUSES == _EVENTS_BETWEEN_PAUSES - 1:
                await asyncio.sleep(0)
            try:
                job = await self._calls.require_wanted(leased.job)
                body = await self._calls.load_body(job)
                size += len(body)
                if size > MAX_BODY_BYTES and selection.jobs:
                    selection.remaining = jobs[place:]
                    break
                event = make_event(job, body, handler)
                event.payload  # noqa: B018 - decodes, also without a model
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 - a model may be user code
                selection.unusable.append(leased)
            else:
                selection.jobs.append(leased)
                selection.events.append(event)
        return selection

    def _log_failure(
        self, handler: Handler, jobs: Sequence[LeasedJob], error: BaseException
    ) -> None:
        text = self._settler.describe(error)
        trace = self._settler.traceback(jobs[0].job, error)
        message = "%s: a call with %d events committed nothing; each is tried alone: %s"
        fields = LogFields(handler=handler.name, count=len(jobs), error=text)
        if trace.location:
            fields |= LogFields(location=trace.location, traceback=trace.text)
        reason = reason_at(text, trace.location)
        _log.warning(message, handler.label, len(jobs), reason, extra=fields)
