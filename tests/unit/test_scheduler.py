"""The scheduler decides what a worker claims and what starts next."""

import pytest

from onceward.work.claiming.leases import Revoked
from onceward.work.claiming.scheduler import MAX_PREFETCH_JOBS, ClaimPlan, prefetch_limit
from onceward.work.running.batching import BatchOutcome
from tests.scheduling import (
    POLL_SECONDS,
    START,
    add,
    leased_jobs,
    make_claim,
    make_lease,
    make_scheduler,
    observe,
    one_run,
    plan_of,
    push,
    settle,
    started,
)

ONE_SECOND = 1.0

# Claims.


PREFETCH: list[tuple[int, float, int]] = [
    (4, 10.0, 4),
    (4, 0.05, 40),
    (4, 0.0001, MAX_PREFETCH_JOBS),
    (4, 0.0, 400),
    (500, 10.0, 500),
]


def test_the_prefetch_limit_falls_with_the_mean_duration(subtests: pytest.Subtests) -> None:
    for workers, mean_seconds, limit in PREFETCH:
        with subtests.test(workers=workers, mean_seconds=mean_seconds):
            assert prefetch_limit(workers, mean_seconds) == limit


def test_of_a_handler_that_has_not_run_no_jobs_are_claimed_ahead() -> None:
    scheduler = make_scheduler("new", "known", workers=4)
    observe(scheduler, "known", 0.1)
    assert plan_of(scheduler).wanted == {"new": 3, "known": 15}


def test_jobs_are_claimed_up_to_the_limit_and_not_while_enough_are_held() -> None:
    scheduler = make_scheduler(workers=2)
    observe(scheduler, "single", 0.01)
    assert plan_of(scheduler) == ClaimPlan({"single": 100}, 100)
    add(scheduler, make_lease(1))
    assert plan_of(scheduler) == ClaimPlan({"single": 99}, 99)
    add(scheduler, make_lease(2))
    assert scheduler.next_claim(START) is None


def test_no_jobs_are_due_after_a_claim_that_left_none_behind() -> None:
    scheduler = make_scheduler(workers=2)
    add(scheduler, make_lease(1))
    assert scheduler.may_have_due is False


def test_jobs_may_be_due_from_an_announcement_until_the_next_claim() -> None:
    scheduler = make_scheduler(workers=2)
    add(scheduler)
    scheduler.may_have_due = True
    add(scheduler)
    assert scheduler.may_have_due is False


def test_jobs_may_be_due_after_a_claim_that_got_all_it_wanted() -> None:
    scheduler = make_scheduler(workers=2)
    add(scheduler, make_lease(2))
    assert scheduler.may_have_due


def test_jobs_may_be_due_of_a_handler_of_which_none_were_wanted() -> None:
    scheduler = make_scheduler("slow", "quick", workers=2)
    observe(scheduler, "slow", ONE_SECOND)
    observe(scheduler, "quick", 0.01)
    push(scheduler, make_lease(1, "slow"))
    started(scheduler)
    plan = plan_of(scheduler)
    assert plan.wanted["slow"] == 0
    assert scheduler.may_have_due, "its job may end during the claim"
    scheduler.add(plan, make_claim(), START)
    assert scheduler.may_have_due


@pytest.mark.parametrize("solo", [False, True])
def test_jobs_may_be_due_while_one_must_run_alone(solo: bool) -> None:  # noqa: FBT001 - of the test
    scheduler = make_scheduler(workers=2)
    plan = plan_of(scheduler)
    scheduler.add(
        ClaimPlan(plan.wanted, plan.limit, solo=solo), make_claim(solo_waiting=not solo), START
    )
    assert scheduler.may_have_due


def test_the_claim_limit_follows_the_duration_of_jobs() -> None:
    scheduler = make_scheduler(workers=2)
    observe(scheduler, "single", ONE_SECOND)
    assert plan_of(scheduler) == ClaimPlan({"single": 2}, 2)


def test_a_batch_counts_as_the_mean_of_its_jobs() -> None:
    scheduler = make_scheduler("shared", workers=2)
    for _ in range(100):
        jobs = leased_jobs(make_lease(4, "shared"))
        scheduler.complete_batch(BatchOutcome(settled=jobs), seconds=0.4)
    assert plan_of(scheduler).wanted == {"shared": prefetch_limit(2, 0.1)}


def test_a_free_slot_is_filled_while_slow_jobs_occupy_the_others() -> None:
    scheduler = make_scheduler(workers=3)
    observe(scheduler, "single", ONE_SECOND)
    add(scheduler, make_lease(2))
    assert len(started(scheduler)) == 2
    assert plan_of(scheduler) == ClaimPlan({"single": 1}, 1)
    add(scheduler, make_lease(1))
    assert len(started(scheduler)) == 1
    assert scheduler.next_claim(START) is None


def test_jobs_are_claimed_while_no_more_than_one_batch_is_held() -> None:
    scheduler = make_scheduler("shared", max_jobs_per_transaction=4)
    push(scheduler, make_lease(8, "shared"))
    settle(scheduler, one_run(scheduler))  # two jobs; the next batch has four
    assert scheduler.next_claim(START) is None
    assert len(one_run(scheduler).jobs) == 4
    assert scheduler.next_claim(START) is None, "six jobs are held"
    scheduler.withdraw(lambda _: True)
    assert scheduler.next_claim(START) is not None, "four are one batch"


def test_a_large_batch_size_does_not_claim_beyond_half_of_the_limit() -> None:
    scheduler = make_scheduler()
    for size in (2, 4, 8):
        jobs = leased_jobs(make_lease(size))
        scheduler.complete_batch(BatchOutcome(settled=jobs), seconds=0.0)
    observe(scheduler, "single", 0.125)
    push(scheduler, make_lease(2))
    assert plan_of(scheduler) == ClaimPlan({"single": 2}, 2)
    push(scheduler, make_lease(1))
    assert scheduler.next_claim(START) is None


def test_no_jobs_of_paused_handlers_are_claimed() -> None:
    scheduler = make_scheduler("paused", "other", workers=4)
    assert plan_of(scheduler, without={"paused"}).wanted == {"other": 3}
    assert scheduler.next_claim(START, without={"paused", "other"}) is None


def test_the_pause_lasts_until_the_next_job_is_due() -> None:
    scheduler = make_scheduler()
    assert add(scheduler, None) == POLL_SECONDS
    assert add(scheduler, None, next_due_seconds=0.3) == 0.3
    assert add(scheduler, None, next_due_seconds=60.0) == POLL_SECONDS


def test_a_claim_that_reaches_its_limit_is_followed_by_another_at_once() -> None:
    plan = ClaimPlan({"a": 9, "b": 9}, limit=4)
    scheduler = make_scheduler("a", "b")
    assert scheduler.add(plan, make_claim(make_lease(4, "a")), START) is None
    scheduler = make_scheduler("a", "b")
    assert scheduler.add(plan, make_claim(make_lease(3, "a")), START) is not None


def test_a_claim_that_got_all_that_it_wanted_of_a_handler_is_followed_by_another() -> None:
    plan = ClaimPlan({"a": 3, "b": 9, "c": 0}, limit=12)
    scheduler = make_scheduler("a", "b", "c")
    assert scheduler.add(plan, make_claim(make_lease(3, "a")), START) is None
    scheduler = make_scheduler("a", "b", "c")
    assert scheduler.add(plan, make_claim(make_lease(3, "b")), START) is not None


def test_nothing_is_claimed_while_the_next_batch_waits_and_the_queue_was_empty() -> None:
    scheduler = make_scheduler("shared", workers=8)
    add(scheduler, make_lease(3, "shared"))
    run = one_run(scheduler)
    assert scheduler.next_claim(START) is None, "one job waits for the batch to end"
    settle(scheduler, run)
    assert scheduler.next_claim(START) is not None, "no batch is running"


def test_jobs_are_claimed_beside_a_waiting_batch_if_the_last_claim_was_full() -> None:
    scheduler = make_scheduler("shared", workers=8)
    scheduler.add(ClaimPlan({"shared": 3}, 3), make_claim(make_lease(3, "shared")), START)
    one_run(scheduler)
    assert scheduler.next_claim(START) is not None


# Starts.


def test_no_more_runs_start_than_there_are_slots() -> None:
    scheduler = make_scheduler(workers=2)
    lease = make_lease(3)
    push(scheduler, lease)
    first, second = started(scheduler)
    assert [*first.jobs, *second.jobs] == leased_jobs(lease)[:2]
    settle(scheduler, second)
    assert one_run(scheduler).jobs == leased_jobs(lease)[2:]


def test_jobs_that_share_run_in_growing_batches_in_their_order() -> None:
    scheduler = make_scheduler("shared", max_jobs_per_transaction=5)
    lease = make_lease(20, "shared")
    push(scheduler, lease)
    batches = []
    while run := scheduler.next_run(START):
        batches.append(run.jobs)
        settle(scheduler, run)
    assert [len(batch) for batch in batches] == [2, 4, 5, 5, 4]
    assert [job for batch in batches for job in batch] == leased_jobs(lease)


def test_a_batch_takes_jobs_of_several_leases() -> None:
    scheduler = make_scheduler("shared")
    first, second = make_lease(1, "shared"), make_lease(1, "shared")
    push(scheduler, first, second)
    assert one_run(scheduler).jobs == leased_jobs(first, second)


def test_no_more_batches_run_than_the_store_allows_and_single_jobs_fill_the_other_slots() -> None:
    scheduler = make_scheduler("shared", "single", workers=4, max_shared_transactions=2)
    push(scheduler, make_lease(10, "shared"))
    batches = started(scheduler)
    assert [run.is_batch for run in batches] == [True, True]
    push(scheduler, make_lease(3))
    assert [run.is_batch for run in started(scheduler)] == [False, False]
    settle(scheduler, batches[0])
    assert one_run(scheduler).is_batch


def test_sharing_can_be_turned_off() -> None:
    scheduler = make_scheduler("shared", workers=4, max_jobs_per_transaction=1)
    push(scheduler, make_lease(3, "shared"))
    assert [run.is_batch for run in started(scheduler)] == [False, False, False]


def test_batches_and_single_jobs_alternate_in_a_single_slot() -> None:
    scheduler = make_scheduler("shared", "single", max_jobs_per_transaction=2)
    push(scheduler, make_lease(6, "shared"), make_lease(2))
    kinds = []
    while run := scheduler.next_run(START):
        kinds.append("batch" if run.is_batch else "single")
        settle(scheduler, run)
    assert kinds == ["batch", "single", "batch", "single", "batch"]


# Unsettled jobs and lost leases.


def test_after_a_failed_batch_its_jobs_come_before_all_others_in_their_order() -> None:
    scheduler = make_scheduler("shared")
    lease = make_lease(9, "shared")
    push(scheduler, lease)
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
    assert scheduler.withdraw(lambda _: True) == [fourth, *leased_jobs(lease)[6:]]


def test_jobs_to_retry_alone_alternate_with_batches() -> None:
    scheduler = make_scheduler("shared")
    lease = make_lease(3, "shared")
    push(scheduler, lease)
    run = one_run(scheduler)
    scheduler.complete_batch(BatchOutcome(retry_alone=run.jobs), seconds=0.1)
    scheduler.free_slot(run)
    kinds = []
    while again := scheduler.next_run(START):
        kinds.append((again.is_batch, again.jobs))
        settle(scheduler, again)
    first, second, third = leased_jobs(lease)
    assert kinds == [(False, [first]), (True, [third]), (False, [second])]


def test_jobs_that_a_slow_batch_did_not_run_come_next() -> None:
    scheduler = make_scheduler("shared")
    lease = make_lease(4, "shared")
    push(scheduler, lease)
    run = one_run(scheduler)
    first, second, *rest = leased_jobs(lease)
    scheduler.complete_batch(BatchOutcome(settled=[first], remaining=[second]), seconds=0.1)
    scheduler.free_slot(run)
    assert one_run(scheduler).jobs == [second, rest[0]]


def test_unsettled_jobs_of_a_batch_are_still_held() -> None:
    scheduler = make_scheduler("shared")
    push(scheduler, make_lease(2, "shared"))
    run = one_run(scheduler)
    alone, remaining = run.jobs
    scheduler.complete_batch(BatchOutcome(retry_alone=[alone], remaining=[remaining]), seconds=0.1)
    scheduler.free_slot(run)
    assert scheduler.next_claim(START) is None, "two jobs are more than one batch"


def test_a_lost_lease_withdraws_its_queued_jobs_and_lists_its_runs() -> None:
    scheduler = make_scheduler("shared", "single", workers=2, max_shared_transactions=2)
    valid, lost, single = make_lease(1, "shared"), make_lease(3, "shared"), make_lease(3)
    push(scheduler, valid, lost, single)
    batch, alone = started(scheduler)
    assert batch.jobs == leased_jobs(valid) + leased_jobs(lost)[:1]
    assert scheduler.runs_of(Revoked({lost.token}).affects) == [batch]
    assert scheduler.runs_of(Revoked({single.token}).affects) == [alone]
    assert scheduler.runs_of(Revoked({"another"}).affects) == []
    assert scheduler.withdraw(Revoked({lost.token}).affects) == leased_jobs(lost)[1:]
    assert scheduler.withdraw(Revoked({"another"}).affects) == []
    assert scheduler.withdraw(Revoked({single.token}).affects) == leased_jobs(single)[1:]
    assert scheduler.withdraw(lambda _: True) == []


def test_a_cancelled_job_withdraws_only_itself() -> None:
    scheduler = make_scheduler()
    lease = make_lease(3)
    push(scheduler, lease)
    first, second, third = leased_jobs(lease)
    assert scheduler.withdraw(Revoked((), {second.job.id}).affects) == [second]
    assert scheduler.withdraw(lambda _: True) == [first, third]


def test_the_other_jobs_of_a_cancelled_batch_run_again_before_all_others() -> None:
    scheduler = make_scheduler("shared", max_jobs_per_transaction=8)
    lease = make_lease(7, "shared")
    push(scheduler, lease)
    settle(scheduler, one_run(scheduler))
    run = one_run(scheduler)
    still_held = run.jobs[1:]
    scheduler.free_slot(run)
    scheduler.requeue(still_held)
    push(scheduler, make_lease(5, "shared"))
    assert scheduler.next_claim(START) is None, "nine jobs are held"
    assert one_run(scheduler).jobs[:4] == [*still_held, leased_jobs(lease)[-1]]


def test_withdrawn_jobs_are_not_held() -> None:
    scheduler = make_scheduler("shared", "single")
    lease, other = make_lease(2), make_lease(2, "shared")
    empty = plan_of(scheduler)
    push(scheduler, lease, other)
    assert scheduler.next_claim(START) is None
    assert scheduler.withdraw(lambda _: True) == leased_jobs(lease, other)
    assert plan_of(scheduler) == empty
    assert started(scheduler) == []
