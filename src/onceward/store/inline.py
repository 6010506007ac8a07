"""Events whose handlers run within the request, on both stores: read, settled and failed."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from onceward.errors import EventChanged, NotSettled
from onceward.model.admin import Pausable, Pause
from onceward.model.events import Arrival, DuplicateBody, Outcome
from onceward.model.inline import (
    InlineFailure,
    InlineRun,
    InlineSettlement,
    LedgerEvent,
    LedgerJob,
    LedgerView,
)
from onceward.model.jobs import FailureType, JobStatus
from onceward.ports import Row
from onceward.store.base import ALTERED_ROWS, BaseStore, LedgerTransaction
from onceward.work.definition.filters import passes
from onceward.work.payloads.payload import read_document

KEPT_ATTEMPTS: Final = 100
"""Failed attempts within requests that are kept for each job. All are counted."""

_CHANGED: Final = "another process recorded or settled the event while its handlers ran"
_NO_JOB: Final = (
    "the event has no job for the handler {handler}: another process retired the handler, which "
    "this one still defines. Remove inbox.retire({handler!r}) there, or the handler here"
)

Run = Callable[..., Awaitable[list[Row]]]
"""Runs a named statement with its parameters."""


class SqlInlineLedger(BaseStore):
    """The port `InlineLedger`, apart from its locks."""

    @abstractmethod
    def _recording_failures(self) -> AbstractAsyncContextManager[LedgerTransaction]:
        """Open a transaction in which failed attempts are recorded; commit it at the end."""

    async def look(self, arrivals: Sequence[Arrival]) -> LedgerView:
        """Return what the ledger has of the events of some deliveries."""
        has_filters = self._payload_routes.has_filters
        return await look(self._read, arrivals, self._source_ids, has_filters=has_filters)

    async def fail_inline(
        self, arrivals: Sequence[Arrival], failures: Sequence[InlineFailure], worker: str
    ) -> dict[InlineRun, tuple[int, int]]:
        """Record deliveries whose handlers failed, in a transaction of its own.

        Never change the status of a job that exists already. Return the job and the number of the
        attempt for each run that was counted.
        """
        counted: dict[InlineRun, tuple[int, int]] = {}
        async with self._recording_failures() as ledger:
            receipts = await ledger.record(arrivals)
            for failure in failures:
                run, position = failure.run, failure.run.position
                event = await _load(ledger.run, arrivals[position], self._source_ids)
                job = _job_of(event, run.handler)
                if job is None:
                    continue
                is_recorded = receipts[position].outcome is Outcome.RECORDED
                rows = await ledger.run(
                    "fail_inline",
                    "new" if is_recorded else "failed",
                    job=job.id,
                    error=failure.error,
                    traceback=failure.traceback,
                    elapsed_seconds=failure.elapsed_seconds,
                    worker=worker,
                    kept=KEPT_ATTEMPTS,
                )
                if rows:
                    counted[run] = job.id, rows[0]["number"]
        return counted


async def look(
    run: Run, arrivals: Sequence[Arrival], source_ids: Mapping[str, int], *, has_filters: bool
) -> LedgerView:
    """Return what the ledger has of the events of some deliveries.

    If routes have filters, return for new events also the handlers that will get a job.
    """
    events = [await _load(run, arrival, source_ids) for arrival in arrivals]
    held = [
        position
        for position, arrival in enumerate(arrivals)
        if events[position] is None and await _is_held(run, arrival, source_ids)
    ]
    pauses = [
        Pause(Pausable(row["kind"]), row["name"], row["paused_at"]) for row in await run("pauses")
    ]
    wanted = {
        position: await _wanted(run, arrival, source_ids)
        for position, arrival in enumerate(arrivals)
        if has_filters and events[position] is None
    }
    return LedgerView(events, frozenset(held), pauses, wanted)


async def settle(
    ledger: LedgerTransaction,
    arrivals: Sequence[Arrival],
    runs: Sequence[InlineRun],
    source_ids: Mapping[str, int],
) -> InlineSettlement:
    """Record deliveries and end the jobs of the handlers that ran, as the last statements.

    Raise EventChanged if the events are no longer as they were when the handlers started.
    """
    receipts = await ledger.record(arrivals)
    jobs: list[tuple[InlineRun, LedgerJob]] = []
    open_jobs: list[tuple[int, LedgerJob]] = []
    runs_at: dict[int, list[InlineRun]] = defaultdict(list)
    for run in runs:
        runs_at[run.position].append(run)
    for position, arrival in enumerate(arrivals):
        event = await _load(ledger.run, arrival, source_ids)
        if event is not None:
            open_jobs += [(position, job) for job in event.jobs if job.is_open]
        is_recorded = receipts[position].outcome is Outcome.RECORDED
        jobs += [
            (run, _expected_job(run, event, is_recorded=is_recorded)) for run in runs_at[position]
        ]
    for run, job in jobs:
        if run.is_new:
            await ledger.run("attach_effects", job=job.id, provisional=run.job)
    for run, job in jobs:
        status = JobStatus.DONE if run.filtered is None else JobStatus.IGNORED
        rows = await ledger.run(
            "settle_inline",
            "new" if run.is_new else "failed",
            job=job.id,
            status=status,
            error=run.filtered,
            failure_type=None if run.filtered is None else FailureType.FILTERED,
        )
        if not rows:
            raise EventChanged(_CHANGED)
        if rows[0]["status"] != status:
            raise NotSettled(ALTERED_ROWS.format(table="jobs"))
    ran = {job.id for _, job in jobs}
    others = [(position, job) for position, job in open_jobs if job.id not in ran]
    return InlineSettlement(
        receipts,
        frozenset(position for position, _ in others),
        any(job.status is JobStatus.QUEUED for _, job in others),
    )


def _expected_job(run: InlineRun, event: LedgerEvent | None, *, is_recorded: bool) -> LedgerJob:
    """Return the job of a run, if its event is new or not as it was when the handler started."""
    if run.is_new != is_recorded:
        raise EventChanged(_CHANGED)
    job = _job_of(event, run.handler)
    if job is None:
        raise NotSettled(_NO_JOB.format(handler=run.handler))
    return job


def _job_of(event: LedgerEvent | None, handler: str) -> LedgerJob | None:
    jobs = event.jobs if event else ()
    return next((job for job in jobs if job.handler == handler), None)


async def _load(run: Run, arrival: Arrival, source_ids: Mapping[str, int]) -> LedgerEvent | None:
    source = source_ids[arrival.source]
    rows = await run("inline_event", source=source, event_id=arrival.event_id)
    if not rows:
        return None
    jobs = tuple(_ledger_job(row) for row in rows if row["job"] is not None)
    first = rows[0]
    return LedgerEvent(
        id=first["event"],
        body_sha256=bytes(first["body_sha256"]),
        received_at=first["received_at"],
        jobs=jobs,
        final_state=first["final_state"],
    )


def _ledger_job(row: Row) -> LedgerJob:
    return LedgerJob(
        id=row["job"],
        handler=row["handler"],
        status=JobStatus(row["status"]),
        failure_type=row["failure_type"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
    )


async def _wanted(run: Run, arrival: Arrival, source_ids: Mapping[str, int]) -> frozenset[str]:
    """Return the handlers that get a job for a new event, by the routes in the ledger.

    During a deploy, another version of a handler may have a wider filter than this process.
    """
    source = source_ids[arrival.source]
    rows = await run("wanting_handlers", source=source, type=arrival.type)
    document = read_document(arrival.source, arrival.headers, arrival.body)
    return frozenset(
        row["handler"] for row in rows if not row["filter"] or passes(row["filter"], document)
    )


async def _is_held(run: Run, arrival: Arrival, source_ids: Mapping[str, int]) -> bool:
    """Return whether a new event will be held, because its body came under another id."""
    if arrival.duplicate_body is not DuplicateBody.HELD:
        return False
    covered = arrival.covered_sha256 or arrival.body_sha256
    source = source_ids[arrival.source]
    return bool(await run("first_body", source=source, covered_sha256=covered))
