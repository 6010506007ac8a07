"""A handler of batches gets the events that are due in one call, and takes one slot."""

import pytest

from onceward.settings import Settings
from onceward.work.claiming.leases import LeasedJob
from onceward.work.claiming.scheduler import Scheduler
from onceward.work.running.batching import BatchOutcome
from tests.scheduling import (
    POLL_SECONDS,
    START,
    add,
    handler_of,
    handlers_of,
    lease_of,
    leased_jobs,
    make_claim,
    make_job,
    make_lease,
    observe,
    one_run,
    plan_of,
    push,
    settle,
    started,
)

SIZE = 10


def make_scheduler(*others: str, workers: int = 4) -> Scheduler:
    settings = Settings(workers=workers, max_jobs_per_transaction=8, poll_seconds=POLL_SECONDS)
    return Scheduler(
        settings,
        ("batch", *others),
        max_shared_transactions=1,
        may_share=lambda job: job.handler.startswith("shared"),
        max_events={"batch": SIZE},
    )


def finish(scheduler: Scheduler, outcome: BatchOutcome, seconds: float = 0.01) -> None:
    scheduler.complete_call("batch", outcome, seconds)


def test_a_claim_can_fill_a_call() -> None:
    assert plan_of(make_scheduler()).wanted == {"batch": SIZE}


def test_one_call_gets_what_is_due_in_order_and_takes_one_slot() -> None:
    scheduler = make_scheduler()
    first, second = make_lease(3, "batch"), make_lease(4, "batch")
    push(scheduler, first, second)
    run = one_run(scheduler)
    assert run.jobs == leased_jobs(first, second)
    assert (run.is_gathered, run.is_batch) == (True, False)


def test_a_call_has_at_most_max_events() -> None:
    scheduler = make_scheduler()
    lease = make_lease(SIZE + 3, "batch")
    push(scheduler, lease)
    run = one_run(scheduler)
    assert run.jobs == leased_jobs(lease)[:SIZE]
    finish(scheduler, BatchOutcome(settled=run.jobs))
    scheduler.free_slot(run)
    assert one_run(scheduler).jobs == leased_jobs(lease)[SIZE:]


def test_events_gather_while_a_call_runs() -> None:
    scheduler = make_scheduler()
    push(scheduler, make_lease(1, "batch"))
    running = one_run(scheduler)
    push(scheduler, make_lease(2, "batch"), make_lease(3, "batch"))
    assert started(scheduler) == []
    settle(scheduler, running)
    assert len(one_run(scheduler).jobs) == 5


def test_the_next_call_is_claimed_ahead_but_no_more() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_lease(SIZE, "batch"))
    one_run(scheduler)
    assert plan_of(scheduler).wanted == {"batch": SIZE}
    add(scheduler, make_lease(SIZE, "batch"))
    assert scheduler.next_claim(START) is None


def test_a_slow_handler_is_not_claimed_ahead() -> None:
    scheduler = make_scheduler()
    push(scheduler, make_lease(1, "batch"))
    settle(scheduler, one_run(scheduler), seconds=2.0)
    push(scheduler, make_lease(1, "batch"))
    assert scheduler.next_claim(START) is None  # one waits
    one_run(scheduler)
    assert scheduler.next_claim(START) is None  # one runs


def test_a_call_is_filled_up_while_at_most_half_of_it_waits() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_lease(SIZE // 2, "batch"))
    assert plan_of(scheduler).wanted == {"batch": SIZE // 2}
    add(scheduler, make_lease(1, "batch"))
    assert scheduler.next_claim(START) is None


def test_a_slow_call_counts_as_one_slot_for_the_claims_of_others() -> None:
    scheduler = make_scheduler("slow", workers=8)
    observe(scheduler, "batch", 2.0)
    observe(scheduler, "slow", 2.0)
    free_slots = plan_of(scheduler).wanted["slow"]
    push(scheduler, make_lease(SIZE, "batch"))
    assert plan_of(scheduler).wanted["slow"] == free_slots - 1  # it waits
    one_run(scheduler)
    assert plan_of(scheduler).wanted["slow"] == free_slots - 1  # it runs


def test_a_paused_handler_is_not_claimed() -> None:
    scheduler = make_scheduler("single")
    assert "batch" not in plan_of(scheduler, without=["batch"]).wanted


def test_no_call_is_claimed_ahead_while_a_job_waits_to_run_alone() -> None:
    scheduler = make_scheduler("long")
    observe(scheduler, "long", 2.0)
    push(scheduler, make_lease(1, "long"))
    push(scheduler, make_lease(1, "batch"), solo_waiting=True)
    assert len(started(scheduler)) == 2
    assert scheduler.next_claim(START) is None


def test_jobs_of_a_slow_call_that_failed_are_not_given_back() -> None:
    scheduler = make_scheduler(workers=1)
    push(scheduler, make_lease(SIZE, "batch"))
    run = one_run(scheduler)
    finish(scheduler, BatchOutcome(retry_alone=run.jobs), seconds=2.0)
    scheduler.free_slot(run)
    # No attempt is counted: another worker would put them into one call again.
    assert scheduler.withdraw_excess(START) == []
    assert [one_run(scheduler).is_gathered] == [False]


def test_calls_that_fail_get_a_smaller_share() -> None:
    scheduler = make_scheduler("single", workers=1)
    order = []
    for _ in range(60):
        push(scheduler, make_lease(1, "batch"), make_lease(1, "single"))
        run = one_run(scheduler)
        order.append(handler_of(run))
        if run.is_gathered:
            finish(scheduler, BatchOutcome(retry_alone=run.jobs), seconds=0.1)
            scheduler.free_slot(run)
            scheduler.withdraw(lambda leased: leased.job.handler == "batch")
        else:
            settle(scheduler, run, seconds=0.1)
    assert order.count("batch") < order.count("single") // 2


def test_calls_and_other_handlers_share_a_single_slot() -> None:
    scheduler = make_scheduler("single", workers=1)
    push(scheduler, make_lease(3 * SIZE, "batch"), make_lease(5, "single"))
    order = []
    while runs := started(scheduler):
        order += handlers_of(runs)
        for run in runs:
            if run.is_gathered:
                finish(scheduler, BatchOutcome(settled=run.jobs), seconds=0.001)
                scheduler.free_slot(run)
            else:
                settle(scheduler, run)
    assert (order.count("batch"), order.count("single")) == (3, 5)
    assert order[:6].count("batch") >= 2
    assert order[:6].count("single") >= 2


@pytest.mark.parametrize(
    ("kind", "next_size"),
    [("retry_alone", SIZE // 2), ("unusable", SIZE)],
    ids=["after a failure", "without an event for the call"],
)
def test_each_job_runs_alone_and_calls_get_smaller_after_a_failure(
    kind: str, next_size: int
) -> None:
    scheduler = make_scheduler(workers=2)
    lease = make_lease(SIZE, "batch")
    push(scheduler, lease)
    run = one_run(scheduler)
    finish(scheduler, BatchOutcome(**{kind: run.jobs}))
    scheduler.free_slot(run)
    alone: list[LeasedJob] = []
    while runs := started(scheduler):
        for each in runs:
            assert not each.is_gathered
            alone += each.jobs
        settle(scheduler, *runs)
    assert alone == leased_jobs(lease)
    assert add(scheduler) == POLL_SECONDS  # no job is held any more
    push(scheduler, make_lease(SIZE + 1, "batch"))
    run = one_run(scheduler)
    assert len(run.jobs) == next_size
    finish(scheduler, BatchOutcome(settled=run.jobs))
    scheduler.free_slot(run)
    assert len(one_run(scheduler).jobs) == SIZE + 1 - next_size


def test_a_handler_of_batches_that_was_idle_has_not_saved_time_up() -> None:
    scheduler = make_scheduler("single", workers=1)
    push(scheduler, make_lease(40, "single"))
    for _ in range(20):
        settle(scheduler, one_run(scheduler), seconds=0.1)
    order = []
    for _ in range(4):
        push(scheduler, make_lease(SIZE, "batch"))
        run = one_run(scheduler)
        order.append(handler_of(run))
        settle(scheduler, run, seconds=0.1)
    assert set(order) == {"batch", "single"}


def test_jobs_that_failed_before_run_alone() -> None:
    scheduler = make_scheduler(workers=2)
    failed = make_job("batch")._replace(attempts=1)
    push(scheduler, lease_of(failed, make_job("batch"), make_job("batch")))
    runs = started(scheduler)
    assert sorted(len(run.jobs) for run in runs) == [1, 2]
    (alone,) = [run for run in runs if not run.is_gathered]
    assert alone.jobs[0].job == failed


def test_many_jobs_that_failed_before_are_not_claimed_without_limit() -> None:
    scheduler = make_scheduler(workers=2)
    for _ in range(5):
        plan = scheduler.next_claim(START)
        if plan is None:
            break
        count = plan.wanted["batch"]
        jobs = (make_job("batch")._replace(attempts=1) for _ in range(count))
        scheduler.add(plan, make_claim(lease_of(*jobs)), START)
    assert len(scheduler.withdraw(lambda _: True)) <= SIZE


def test_calls_and_jobs_that_run_alone_alternate_in_a_single_slot() -> None:
    scheduler = make_scheduler(workers=1)
    failed = [make_job("batch")._replace(attempts=1) for _ in range(2)]
    push(scheduler, lease_of(*failed, *(make_job("batch") for _ in range(2 * SIZE))))
    kinds = []
    while runs := started(scheduler):
        (run,) = runs
        kinds.append(run.is_gathered)
        settle(scheduler, run)
    assert kinds == [True, False, True, False]


def test_what_did_not_fit_is_first_in_the_next_call() -> None:
    scheduler = make_scheduler()
    lease = make_lease(4, "batch")
    push(scheduler, lease)
    run = one_run(scheduler)
    finish(scheduler, BatchOutcome(settled=run.jobs[:1], remaining=run.jobs[1:]))
    scheduler.free_slot(run)
    push(scheduler, make_lease(1, "batch"))
    run = one_run(scheduler)
    assert run.jobs[:3] == leased_jobs(lease)[1:]
    settle(scheduler, run)
    assert add(scheduler) == POLL_SECONDS  # no job is held any more


def test_a_job_that_must_run_alone_in_its_process_is_a_call_of_one() -> None:
    scheduler = make_scheduler()
    push(scheduler, make_lease(1, "batch"), solo_waiting=True)
    settle(scheduler, one_run(scheduler))
    plan = plan_of(scheduler, START + 60)
    assert plan.solo
    scheduler.add(plan, make_claim(make_lease(1, "batch")), START + 60)
    run = one_run(scheduler, START + 60)
    assert (len(run.jobs), run.is_gathered) == (1, False)


def test_jobs_of_a_lost_lease_leave_the_queue() -> None:
    scheduler = make_scheduler()
    lost, held = make_lease(2, "batch"), make_lease(2, "batch")
    push(scheduler, lost, held)
    assert scheduler.withdraw(lambda leased: leased.lease is lost) == leased_jobs(lost)
    assert one_run(scheduler).jobs == leased_jobs(held)
