"""The plan of a request to an inline source: the jobs to run, and the result of each event."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from onceward.errors import EventChanged, LedgerUnavailable, ProcessingPaused
from onceward.model.admin import Pausable, Pause
from onceward.model.events import Arrival, Outcome, ProcessingState, Receipt
from onceward.model.inline import InlineRun, InlineStatus, LedgerEvent, LedgerJob, LedgerView
from onceward.model.jobs import Job, JobStatus, Route
from onceward.work.definition.filters import passes
from onceward.work.definition.handlers import Handler
from onceward.work.payloads.payload import read_document

_ID_BITS: Final = 62


class PlannedJob(NamedTuple):
    """A job that runs within the request."""

    run: InlineRun
    job: Job


def plan_jobs(
    arrivals: Sequence[Arrival],
    view: LedgerView,
    handlers: Mapping[str, Handler],
    now: datetime,
) -> list[PlannedJob]:
    """Return the jobs that a request runs: of its new events, and those that failed inline.

    Raise LedgerUnavailable if a job that failed inline has a handler that this process lacks.
    """
    planned: list[PlannedJob] = []
    seen: set[tuple[str, str]] = set()
    for position, arrival in enumerate(arrivals):
        key = arrival.source, arrival.event_id
        event = view.events[position]
        if key in seen or position in view.held:
            continue
        seen.add(key)
        if event is None:
            wanted = view.wanted.get(position, frozenset())
            planned += _new_jobs(position, arrival, handlers.values(), wanted, now)
        elif event.body_sha256 == arrival.body_sha256:
            planned += _failed_jobs(position, arrival, event, handlers)
    return planned


def _new_jobs(
    position: int,
    arrival: Arrival,
    handlers: Iterable[Handler],
    wanted: Collection[str],
    now: datetime,
) -> Iterator[PlannedJob]:
    for handler in handlers:
        if handler.name in wanted or any(_wants(route, arrival) for route in handler.routes):
            # Random, because other transactions may use theirs at the same time.
            provisional = -1 - random.getrandbits(_ID_BITS)
            limit = handler.max_attempts or 0
            job = LedgerJob(provisional, handler.name, JobStatus.QUEUED, None, 0, limit)
            yield _planned(position, arrival, job, 0, now)


def _wants(route: Route, arrival: Arrival) -> bool:
    if not route.matches(arrival.source, arrival.type):
        return False
    if not route.filter:
        return True
    return passes(route.filter, read_document(arrival.source, arrival.headers, arrival.body))


def _failed_jobs(
    position: int, arrival: Arrival, event: LedgerEvent, handlers: Mapping[str, Handler]
) -> Iterator[PlannedJob]:
    for job in event.jobs:
        if job.has_failed_inline:
            if job.handler not in handlers:
                message = "A handler of this event does not run in this process. Retry later."
                refused = LedgerUnavailable(message, code="no_handler")
                refused.handler = job.handler
                raise refused
            yield _planned(position, arrival, job, event.id, event.received_at)


def _planned(
    position: int, arrival: Arrival, job: LedgerJob, event: int, received_at: datetime
) -> PlannedJob:
    return PlannedJob(
        InlineRun(position, job.handler, job.id),
        Job(
            id=job.id,
            handler=job.handler,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            event=event,
            source=arrival.source,
            event_id=arrival.event_id,
            type=arrival.type,
            reference=arrival.reference,
            received_at=received_at,
            headers=arrival.headers,
            body=arrival.body,
        ),
    )


def require_running(
    planned: Iterable[PlannedJob], pauses: Sequence[Pause], overrun: Iterable[str]
) -> None:
    """Raise ProcessingPaused if a planned job must not run now.

    `overrun` are the handlers of this process whose timed-out calls still run.
    """
    paused = {(pause.kind, pause.name) for pause in pauses}
    paused |= {(Pausable.HANDLER, handler) for handler in overrun}
    for _, job in planned:
        if (Pausable.SOURCE, job.source) in paused:
            raise ProcessingPaused("The source is paused. Retry later.")
        if (Pausable.HANDLER, job.handler) in paused:
            refused = ProcessingPaused("A handler of this event is paused. Retry later.")
            refused.handler = job.handler
            raise refused


def recorded_status(event: LedgerEvent | None, receipt: Receipt) -> InlineStatus:
    """Return the status of an event that was recorded without running a handler.

    Raise EventChanged if a job of it should have run.
    """
    jobs = event.jobs if event else ()
    if receipt.outcome is Outcome.CONFLICT:
        return InlineStatus.ACCEPTED
    if any(job.has_failed_inline for job in jobs):
        raise EventChanged("a job failed within another request meanwhile")
    if any(job.is_open for job in jobs) or _is_in_review(event):
        return InlineStatus.ACCEPTED
    was_done = event is not None and event.final_state == ProcessingState.SUCCEEDED
    if was_done or any(job.status is JobStatus.DONE for job in jobs):
        return InlineStatus.ALREADY_PROCESSED
    return InlineStatus.IGNORED


def _is_in_review(event: LedgerEvent | None) -> bool:
    return event is not None and event.final_state == ProcessingState.REVIEW and not event.jobs
