"""The scheduler decides what a worker claims and what starts next."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from onceward.model.jobs import Claim, Job, Lease
from onceward.settings import Settings
from onceward.work.batching import BatchOutcome
from onceward.work.leases import LeasedJob
from onceward.work.scheduler import (
    MAX_PREFETCH_JOBS,
    ClaimRequest,
    Run,
    Scheduler,
    prefetch_limit,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLL_SECONDS = 5.0
ONE_SECOND = 1.0

_ids = count(1)


def make_lease(jobs: int = 1, handler: str = "single") -> Lease:
    """Return a lease on some jobs: `shared` ones may share a transaction, `single` ones do not."""
    return Lease(
        token=f"token-{next(_ids)}",
        jobs=tuple(
            Job(next(_ids), handler, 0, 3, 1, "s", "e", "t", None, NOW, b"{}", b"")
            for _ in range(jobs)
        ),
    )


def make_scheduler(
    *, workers: int = 1, max_jobs_per_transaction: int = 8, max_shared_transactions: int = 1
) -> Scheduler:
    settings = Settings(
        workers=workers,
        max_jobs_per_transaction=max_jobs_per_transaction,
        poll_seconds=POLL_SECONDS,
    )
    return Scheduler(
        settings,
        max_shared_transactions=max_shared_transactions,
        may_share=lambda job: job.handler == "shared",
    )


def add(scheduler: Scheduler, lease: Lease | None, **claim: Any) -> float | None:
    """Make the claim that the scheduler requests, and add its jobs."""
    request = scheduler.next_claim()
    assert request is not None
    return scheduler.add(request, make_claim(lease, **claim))


def make_claim(
    lease: Lease | None = None,
    *,
    solo_waiting: bool = False,
    next_due_seconds: float | None = None,
) -> Claim:
    return Claim(lease, solo_waiting, next_due_seconds)


def started(scheduler: Scheduler) -> list[Run]:
    """Start every run that may start now."""
    return list(_runs(scheduler))


def _runs(scheduler: Scheduler) -> Iterator[Run]:
    while (run := scheduler.next_run()) is not None:
        yield run


def one_run(scheduler: Scheduler) -> Run:
    (run,) = started(scheduler)
    return run


def settle(scheduler: Scheduler, run: Run, seconds: float = 0.001) -> None:
    """Complete a run that settled all of its jobs."""
    if run.is_batch:
        scheduler.complete_batch(BatchOutcome(settled=run.jobs), seconds)
    else:
        scheduler.complete_job(seconds)
    scheduler.free_slot(run)


def leased_jobs(lease: Lease) -> list[LeasedJob]:
    return [LeasedJob(lease, job) for job in lease.jobs]


# Claims.


@pytest.mark.parametrize(
    ("workers", "mean_seconds", "limit"),
    [(4, 10.0, 4), (4, 0.05, 40), (4, 0.0001, MAX_PREFETCH_JOBS), (4, 0.0, 400), (500, 10.0, 500)],
)
def test_the_prefetch_limit_falls_with_the_mean_duration(
    workers: int, mean_seconds: float, limit: int
) -> None:
    assert prefetch_limit(workers, mean_seconds) == limit


def test_jobs_are_claimed_up_to_the_limit_and_not_while_enough_are_held() -> None:
    scheduler = make_scheduler(workers=2)
    assert scheduler.next_claim() == ClaimRequest(prefetch_limit(2, 0.01), solo=False)
    add(scheduler, make_lease(3))
    assert scheduler.next_claim() is None


def test_the_claim_limit_follows_the_duration_of_jobs() -> None:
    scheduler = make_scheduler(workers=2)
    for _ in range(100):
        scheduler.complete_job(ONE_SECOND)
    assert scheduler.next_claim() == ClaimRequest(2, solo=False)


def test_a_batch_counts_as_the_mean_of_its_jobs() -> None:
    scheduler = make_scheduler(workers=2)
    for _ in range(100):
        scheduler.complete_batch(BatchOutcome(settled=leased_jobs(make_lease(4))), seconds=0.4)
    assert scheduler.next_claim() == ClaimRequest(prefetch_limit(2, 0.1), solo=False)


def test_a_free_slot_is_filled_while_slow_jobs_occupy_the_others() -> None:
    scheduler = make_scheduler(workers=3)
    for _ in range(100):
        scheduler.complete_job(ONE_SECOND)
    add(scheduler, make_lease(2))
    assert len(started(scheduler)) == 2
    assert scheduler.next_claim() == ClaimRequest(1, solo=False)
    add(scheduler, make_lease(1))
    assert len(started(scheduler)) == 1
    assert scheduler.next_claim() is None


def test_jobs_are_claimed_while_no_more_than_one_batch_is_held() -> None:
    scheduler = make_scheduler(max_jobs_per_transaction=4)
    add(scheduler, make_lease(8, "shared"))
    settle(scheduler, one_run(scheduler))  # two jobs; the next batch has four
    assert scheduler.next_claim() is None
    assert len(one_run(scheduler).jobs) == 4
    assert scheduler.next_claim() is None, "six jobs are held"
    scheduler.withdraw_all()
    assert scheduler.next_claim() is not None, "four are one batch"


def test_a_large_batch_size_does_not_claim_beyond_half_of_the_limit() -> None:
    scheduler = make_scheduler()
    for size in (2, 4, 8):
        scheduler.complete_batch(BatchOutcome(settled=leased_jobs(make_lease(size))), seconds=0.0)
    for _ in range(100):
        scheduler.complete_job(0.125)
    assert scheduler.next_claim() == ClaimRequest(4, solo=False)
    add(scheduler, make_lease(3))
    assert scheduler.next_claim() is None


def test_the_pause_lasts_until_the_next_job_is_due() -> None:
    scheduler = make_scheduler()
    assert add(scheduler, None) == POLL_SECONDS
    assert add(scheduler, None, next_due_seconds=0.3) == 0.3
    assert add(scheduler, None, next_due_seconds=60.0) == POLL_SECONDS


def test_a_full_claim_is_followed_by_another_at_once() -> None:
    scheduler = make_scheduler()
    request = scheduler.next_claim()
    assert request is not None
    assert scheduler.add(request, make_claim(make_lease(request.limit))) is None
    scheduler = make_scheduler()
    assert scheduler.add(request, make_claim(make_lease(request.limit - 1))) == POLL_SECONDS


def test_nothing_is_claimed_while_the_next_batch_waits_and_the_queue_was_empty() -> None:
    scheduler = make_scheduler(workers=8)
    add(scheduler, make_lease(3, "shared"))
    run = one_run(scheduler)
    assert scheduler.next_claim() is None, "one job waits for the batch to end"
    settle(scheduler, run)
    assert scheduler.next_claim() is not None, "no batch is running"


def test_jobs_are_claimed_beside_a_waiting_batch_if_the_last_claim_was_full() -> None:
    scheduler = make_scheduler(workers=8)
    lease = make_lease(3, "shared")
    scheduler.add(ClaimRequest(3, solo=False), make_claim(lease))
    one_run(scheduler)
    assert scheduler.next_claim() is not None


# Starts.


def test_no_more_runs_start_than_there_are_slots() -> None:
    scheduler = make_scheduler(workers=2)
    lease = make_lease(3)
    add(scheduler, lease)
    first, second = started(scheduler)
    assert [*first.jobs, *second.jobs] == leased_jobs(lease)[:2]
    settle(scheduler, second)
    assert one_run(scheduler).jobs == leased_jobs(lease)[2:]


def test_jobs_that_share_run_in_growing_batches_in_their_order() -> None:
    scheduler = make_scheduler(max_jobs_per_transaction=5)
    lease = make_lease(20, "shared")
    add(scheduler, lease)
    batches = []
    while run := scheduler.next_run():
        batches.append(run.jobs)
        settle(scheduler, run)
    assert [len(batch) for batch in batches] == [2, 4, 5, 5, 4]
    assert [job for batch in batches for job in batch] == leased_jobs(lease)


def test_a_batch_takes_jobs_of_several_leases() -> None:
    scheduler = make_scheduler()
    first, second = make_lease(1, "shared"), make_lease(1, "shared")
    scheduler.add(ClaimRequest(1, solo=False), make_claim(first))
    scheduler.add(ClaimRequest(1, solo=False), make_claim(second))
    assert one_run(scheduler).jobs == leased_jobs(first) + leased_jobs(second)


def test_no_more_batches_run_than_the_store_allows_and_single_jobs_fill_the_other_slots() -> None:
    scheduler = make_scheduler(workers=4, max_shared_transactions=2)
    lease = make_lease(10, "shared")
    add(scheduler, lease)
    batches = started(scheduler)
    assert [run.is_batch for run in batches] == [True, True]
    scheduler.add(ClaimRequest(9, solo=False), make_claim(make_lease(3)))
    assert [run.is_batch for run in started(scheduler)] == [False, False]
    settle(scheduler, batches[0])
    assert one_run(scheduler).is_batch


def test_sharing_can_be_turned_off() -> None:
    scheduler = make_scheduler(workers=4, max_jobs_per_transaction=1)
    add(scheduler, make_lease(3, "shared"))
    assert [run.is_batch for run in started(scheduler)] == [False, False, False]


def test_batches_and_single_jobs_alternate_in_a_single_slot() -> None:
    scheduler = make_scheduler(max_jobs_per_transaction=2)
    scheduler.add(ClaimRequest(9, solo=False), make_claim(make_lease(6, "shared")))
    scheduler.add(ClaimRequest(9, solo=False), make_claim(make_lease(2)))
    kinds = []
    while run := scheduler.next_run():
        kinds.append("batch" if run.is_batch else "single")
        settle(scheduler, run)
    assert kinds == ["batch", "single", "batch", "single", "batch"]


# Jobs that must run alone.


def test_a_solo_job_is_claimed_only_when_nothing_else_is_held() -> None:
    scheduler = make_scheduler(workers=4)
    assert add(scheduler, make_lease(1), solo_waiting=True) is None, "the solo job is due now"
    run = one_run(scheduler)
    assert scheduler.next_claim() is None
    settle(scheduler, run)
    request = scheduler.next_claim()
    assert request is not None
    assert request.solo


def test_nothing_is_claimed_while_a_solo_job_runs() -> None:
    scheduler = make_scheduler(workers=4)
    add(scheduler, None, solo_waiting=True)
    assert add(scheduler, make_lease(1)) is None
    run = one_run(scheduler)
    assert scheduler.next_claim() is None
    settle(scheduler, run)
    assert scheduler.next_claim() is not None


def test_a_solo_job_never_shares_a_transaction() -> None:
    scheduler = make_scheduler()
    add(scheduler, None, solo_waiting=True)
    add(scheduler, make_lease(1, "shared"))
    assert not one_run(scheduler).is_batch


def test_solo_jobs_and_others_are_claimed_alternately() -> None:
    scheduler = make_scheduler()
    kinds = []
    for _ in range(4):
        request = scheduler.next_claim()
        assert request is not None
        kinds.append(request.solo)
        scheduler.add(request, make_claim(make_lease(1), solo_waiting=True))
        settle(scheduler, one_run(scheduler))
    assert kinds == [False, True, False, True]


def test_a_solo_job_that_another_worker_took_blocks_nothing() -> None:
    scheduler = make_scheduler(workers=2)
    add(scheduler, None, solo_waiting=True)
    assert add(scheduler, None) is None, "a solo claim does not look for other jobs"
    assert scheduler.next_claim() == ClaimRequest(prefetch_limit(2, 0.01), solo=False)


# Unsettled jobs and lost leases.


def test_after_a_failed_batch_its_jobs_come_before_all_others_in_their_order() -> None:
    scheduler = make_scheduler()
    lease = make_lease(9, "shared")
    add(scheduler, lease)
    settle(scheduler, one_run(scheduler))
    run = one_run(scheduler)
    first, failed, third, fourth = run.jobs
    scheduler.complete_batch(
        BatchOutcome(retry_alone=[failed], remaining=[first, third, fourth]), seconds=0.1
    )
    scheduler.free_slot(run)
    alone = one_run(scheduler)
    assert (alone.jobs, alone.is_batch) == ([failed], False)
    settle(scheduler, alone)
    assert one_run(scheduler).jobs == [first, third], "half as many as before"
    assert scheduler.withdraw_all() == [fourth, *leased_jobs(lease)[6:]]


def test_jobs_to_retry_alone_alternate_with_batches() -> None:
    scheduler = make_scheduler()
    lease = make_lease(3, "shared")
    add(scheduler, lease)
    run = one_run(scheduler)
    scheduler.complete_batch(BatchOutcome(retry_alone=run.jobs), seconds=0.1)
    scheduler.free_slot(run)
    kinds = []
    while again := scheduler.next_run():
        kinds.append((again.is_batch, again.jobs))
        settle(scheduler, again)
    first, second, third = leased_jobs(lease)
    assert kinds == [(False, [first]), (True, [third]), (False, [second])]


def test_jobs_that_a_slow_batch_did_not_run_come_next() -> None:
    scheduler = make_scheduler()
    lease = make_lease(4, "shared")
    add(scheduler, lease)
    run = one_run(scheduler)
    first, second, *rest = leased_jobs(lease)
    scheduler.complete_batch(BatchOutcome(settled=[first], remaining=[second]), seconds=0.1)
    scheduler.free_slot(run)
    assert one_run(scheduler).jobs == [second, rest[0]]


def test_a_lost_lease_withdraws_its_queued_jobs_and_lists_its_runs() -> None:
    scheduler = make_scheduler(workers=2, max_shared_transactions=2)
    valid, lost, single = make_lease(1, "shared"), make_lease(3, "shared"), make_lease(3)
    for lease in (valid, lost, single):
        scheduler.add(ClaimRequest(9, solo=False), make_claim(lease))
    batch, alone = started(scheduler)
    assert batch.jobs == leased_jobs(valid) + leased_jobs(lost)[:1]
    assert scheduler.runs_of({lost.token}) == [batch]
    assert scheduler.runs_of({single.token}) == [alone]
    assert scheduler.runs_of({"another"}) == []
    assert scheduler.withdraw({lost.token}) == leased_jobs(lost)[1:]
    assert scheduler.withdraw({"another"}) == []
    assert scheduler.withdraw({single.token}) == leased_jobs(single)[1:]
    assert scheduler.withdraw_all() == []


def test_the_other_jobs_of_a_cancelled_batch_run_again_before_all_others() -> None:
    scheduler = make_scheduler(max_jobs_per_transaction=8)
    lease = make_lease(7, "shared")
    add(scheduler, lease)
    settle(scheduler, one_run(scheduler))
    run = one_run(scheduler)
    still_held = run.jobs[1:]
    scheduler.free_slot(run)
    scheduler.requeue(still_held)
    assert one_run(scheduler).jobs == [*still_held, leased_jobs(lease)[-1]]


def test_withdrawn_jobs_are_not_held() -> None:
    scheduler = make_scheduler()
    lease, other = make_lease(2), make_lease(2, "shared")
    add(scheduler, lease)
    scheduler.add(ClaimRequest(9, solo=False), make_claim(other))
    assert scheduler.next_claim() is None
    assert scheduler.withdraw_all() == leased_jobs(lease) + leased_jobs(other)
    assert scheduler.next_claim() == ClaimRequest(prefetch_limit(1, 0.01), solo=False)
    assert started(scheduler) == []
