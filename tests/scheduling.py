"""Leases, claims and runs for tests of the scheduler."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

from onceward.model.jobs import Claim, Job, Lease
from onceward.settings import Settings
from onceward.work.claiming.leases import LeasedJob
from onceward.work.claiming.scheduler import ClaimPlan, Run, Scheduler
from onceward.work.running.batching import BatchOutcome

START = 1000.0
POLL_SECONDS = 5.0
QUICK_SECONDS = 0.001

_RECEIVED_AT = datetime(2026, 1, 1, tzinfo=UTC)
_ids = count(1)


def make_job(handler: str = "single", *, ordering_key: str | None = None) -> Job:
    number = next(_ids)
    return Job(
        number, handler, 0, 3, 1, "s", "e", "t", None, _RECEIVED_AT, b"{}", b"", ordering_key
    )


def make_lease(jobs: int = 1, handler: str = "single") -> Lease:
    """Return a lease on some jobs: `shared` ones may share a transaction, others do not."""
    return lease_of(*(make_job(handler) for _ in range(jobs)))


def lease_of(*jobs: Job) -> Lease:
    return Lease(token=f"token-{next(_ids)}", jobs=jobs)


def leased_jobs(*leases: Lease) -> list[LeasedJob]:
    return [LeasedJob(lease, job) for lease in leases for job in lease.jobs]


def make_scheduler(
    *handlers: str,
    workers: int = 1,
    max_jobs_per_transaction: int = 8,
    max_shared_transactions: int = 1,
) -> Scheduler:
    """Return a scheduler for some handlers, by default for a single one."""
    settings = Settings(
        workers=workers,
        max_jobs_per_transaction=max_jobs_per_transaction,
        poll_seconds=POLL_SECONDS,
    )
    return Scheduler(
        settings,
        handlers or ("single",),
        max_shared_transactions=max_shared_transactions,
        may_share=lambda job: job.handler.startswith("shared"),
    )


def plan_of(scheduler: Scheduler, now: float = START, **options: Collection[str]) -> ClaimPlan:
    """Return the next claim, which must not be None."""
    plan = scheduler.next_claim(now, **options)
    assert plan is not None
    return plan


def add(
    scheduler: Scheduler, lease: Lease | None = None, now: float = START, **claim: Any
) -> float | None:
    """Make the claim that the scheduler wants, and add its jobs."""
    return scheduler.add(plan_of(scheduler, now), make_claim(lease, **claim), now)


def push(
    scheduler: Scheduler, *leases: Lease, now: float = START, solo_waiting: bool = False
) -> None:
    """Add jobs even though the scheduler holds enough."""
    for lease in leases:
        handlers = {job.handler for job in lease.jobs}
        plan = ClaimPlan(dict.fromkeys(handlers, len(lease.jobs) + 1), len(lease.jobs) + 1)
        scheduler.add(plan, make_claim(lease, solo_waiting=solo_waiting), now)


def make_claim(
    lease: Lease | None = None,
    *,
    solo_waiting: bool = False,
    next_due_seconds: float | None = None,
) -> Claim:
    return Claim(lease, solo_waiting, next_due_seconds)


def started(scheduler: Scheduler, now: float = START) -> list[Run]:
    """Start every run that may start now."""
    return list(_runs(scheduler, now))


def _runs(scheduler: Scheduler, now: float) -> Iterator[Run]:
    while (run := scheduler.next_run(now)) is not None:
        yield run


def one_run(scheduler: Scheduler, now: float = START) -> Run:
    (run,) = started(scheduler, now)
    return run


def settle(
    scheduler: Scheduler, *runs: Run, seconds: float = QUICK_SECONDS, failed: bool = False
) -> None:
    """Complete runs that settled all of their jobs."""
    for run in runs:
        if run.is_batch:
            scheduler.complete_batch(BatchOutcome(settled=run.jobs), seconds)
        else:
            scheduler.complete_job(handler_of(run), seconds, failed=failed)
        scheduler.free_slot(run)


def handler_of(run: Run) -> str:
    """Return the handler of a run, or of the first job of a batch."""
    return run.jobs[0].job.handler


def handlers_of(runs: list[Run]) -> list[str]:
    return [handler_of(run) for run in runs]


def observe(scheduler: Scheduler, handler: str, seconds: float, *, jobs: int = 100) -> None:
    """Let a handler settle jobs that take as long."""
    for _ in range(jobs):
        scheduler.complete_job(handler, seconds)
