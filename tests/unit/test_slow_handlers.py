"""Slow handlers claim no jobs ahead, and leave slots to the others."""

import pytest

from onceward.work.claiming.pace import SLOW_SECONDS
from onceward.work.claiming.scheduler import ASK_INTERVAL_SECONDS, STUCK_SECONDS, ClaimPlan
from tests.scheduling import (
    POLL_SECONDS,
    START,
    add,
    handlers_of,
    lease_of,
    leased_jobs,
    make_claim,
    make_job,
    make_lease,
    make_scheduler,
    observe,
    one_run,
    plan_of,
    push,
    settle,
    started,
)

SLOW_JOB_SECONDS = 2.0
LATER = START + STUCK_SECONDS + 0.1

# Slots.


def test_one_of_several_handlers_leaves_slots_to_the_others(subtests: pytest.Subtests) -> None:
    for workers, slots in ((1, 1), (2, 1), (4, 3), (8, 7), (16, 14), (40, 35)):
        with subtests.test(workers=workers):
            scheduler = make_scheduler("greedy", "other", workers=workers)
            push(scheduler, make_lease(workers, "greedy"))
            assert len(started(scheduler)) == slots
            push(scheduler, make_lease(workers, "other"))
            assert handlers_of(started(scheduler)) == ["other"] * (workers - slots)


def test_a_single_handler_takes_all_slots() -> None:
    scheduler = make_scheduler(workers=4)
    push(scheduler, make_lease(5))
    assert len(started(scheduler)) == 4


def test_batches_of_one_handler_leave_slots_to_the_others() -> None:
    scheduler = make_scheduler("shared", "single", workers=4, max_shared_transactions=4)
    push(scheduler, make_lease(20, "shared"))
    batches = started(scheduler)
    assert [len(run.jobs) for run in batches] == [2, 2, 2]
    push(scheduler, make_lease(1))
    assert handlers_of(started(scheduler)) == ["single"]


def test_a_batch_passes_over_jobs_of_a_handler_that_has_its_slots() -> None:
    scheduler = make_scheduler("shared", "shared too", workers=2, max_shared_transactions=2)
    full, other = make_lease(4, "shared"), make_lease(3, "shared too")
    push(scheduler, full, other)
    first, second = started(scheduler)
    assert (first.jobs, second.jobs) == (leased_jobs(full)[:2], leased_jobs(other)[:2])
    settle(scheduler, first)
    assert one_run(scheduler).jobs == leased_jobs(full)[2:]
    assert scheduler.withdraw(lambda _: True) == leased_jobs(other)[2:]


def test_jobs_that_a_batch_passes_over_keep_their_place() -> None:
    scheduler = make_scheduler("shared", "shared too", workers=2, max_shared_transactions=2)
    full, other = make_lease(4, "shared"), make_lease(3, "shared too")
    push(scheduler, full, other)
    started(scheduler)
    assert scheduler.withdraw(lambda _: True) == leased_jobs(full)[2:] + leased_jobs(other)[2:]


def test_slow_handlers_together_leave_a_slot_to_the_others() -> None:
    scheduler = make_scheduler("a", "b", "quick", workers=4)
    observe(scheduler, "a", SLOW_JOB_SECONDS)
    observe(scheduler, "b", SLOW_JOB_SECONDS)
    observe(scheduler, "quick", 0.01)
    push(scheduler, make_lease(2, "a"), make_lease(2, "b"), make_lease(2, "quick"))
    runs = handlers_of(started(scheduler))
    assert len(runs) == 4
    assert "quick" in runs
    scheduler = make_scheduler("a", "b", "quick", workers=4)
    observe(scheduler, "a", SLOW_JOB_SECONDS)
    observe(scheduler, "b", SLOW_JOB_SECONDS)
    push(scheduler, make_lease(3, "a"), make_lease(3, "b"))
    assert len(started(scheduler)) == 3


def test_handlers_that_have_not_run_leave_a_slot_to_a_quick_one() -> None:
    scheduler = make_scheduler("new", "newer", "quick", workers=4)
    push(scheduler, make_lease(2, "new"), make_lease(2, "newer"))
    assert len(started(scheduler)) == 4, "no handler is known to be quick"
    scheduler = make_scheduler("new", "newer", "quick", workers=4)
    observe(scheduler, "quick", 0.01)
    push(scheduler, make_lease(2, "new"), make_lease(2, "newer"))
    runs = started(scheduler)
    assert len(runs) == 3
    push(scheduler, make_lease(1, "quick"))
    assert handlers_of(started(scheduler)) == ["quick"]


# Claims.


def test_jobs_of_a_slow_handler_are_claimed_as_far_as_slots_are_free() -> None:
    scheduler = make_scheduler("slow", "quick", workers=8)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    assert plan_of(scheduler).wanted["slow"] == 7
    add(scheduler, make_lease(5, "slow"))
    started(scheduler)
    assert plan_of(scheduler).wanted["slow"] == 2
    add(scheduler, make_lease(2, "slow"))
    assert plan_of(scheduler).wanted["slow"] == 0


def test_slow_handlers_share_the_free_slots() -> None:
    scheduler = make_scheduler("a", "b", "c", "quick", workers=8)
    for name in "abc":
        observe(scheduler, name, SLOW_JOB_SECONDS)
    assert plan_of(scheduler).wanted == {"a": 2, "b": 2, "c": 2, "quick": 7}


def test_slow_handlers_with_a_backlog_take_the_slots_that_the_others_do_not_need() -> None:
    scheduler = make_scheduler("a", "b", "idle", "quick", workers=8)
    observe(scheduler, "a", SLOW_JOB_SECONDS)
    observe(scheduler, "b", 3 * SLOW_JOB_SECONDS)
    observe(scheduler, "idle", SLOW_JOB_SECONDS)
    jobs = [make_job(name) for name in "aabb"]
    assert scheduler.add(plan_of(scheduler), make_claim(lease_of(*jobs)), START) is None
    started(scheduler)
    assert plan_of(scheduler).wanted == {"a": 2, "b": 1, "idle": 1, "quick": 7}


def test_a_handler_whose_backlog_is_done_makes_room_for_the_others() -> None:
    scheduler = make_scheduler("a", "b", "quick", workers=8)
    observe(scheduler, "a", SLOW_JOB_SECONDS)
    observe(scheduler, "b", SLOW_JOB_SECONDS)
    jobs = [make_job(name) for name in "aaabbb"]
    scheduler.add(plan_of(scheduler), make_claim(lease_of(*jobs)), START)
    first, *_ = started(scheduler)
    settle(scheduler, first, seconds=SLOW_JOB_SECONDS)
    plan = plan_of(scheduler)
    assert (plan.wanted["a"], plan.wanted["b"]) == (1, 1)
    add(scheduler, make_lease(1, "b"))
    assert plan_of(scheduler).wanted == {"a": 1, "b": 1, "quick": 7}


def test_the_slow_handler_that_used_the_least_time_gets_the_free_slot() -> None:
    scheduler = make_scheduler("a", "b", "quick", workers=4)
    observe(scheduler, "a", 3 * SLOW_JOB_SECONDS)
    observe(scheduler, "b", SLOW_JOB_SECONDS)
    jobs = [make_job("a"), make_job("b")]
    scheduler.add(plan_of(scheduler), make_claim(lease_of(*jobs)), START)
    started(scheduler)
    assert plan_of(scheduler).wanted == {"a": 0, "b": 1, "quick": 3}


def test_a_slot_that_a_handler_no_longer_needs_goes_to_another_at_once() -> None:
    scheduler = make_scheduler("a", "b", "quick", workers=4)
    observe(scheduler, "a", 3 * SLOW_JOB_SECONDS)
    observe(scheduler, "b", SLOW_JOB_SECONDS)
    jobs = [make_job("a"), make_job("b")]
    scheduler.add(plan_of(scheduler), make_claim(lease_of(*jobs)), START)
    started(scheduler)
    assert add(scheduler, None) is None
    assert plan_of(scheduler).wanted == {"a": 1, "b": 1, "quick": 3}
    assert add(scheduler, None) is not None, "nobody is left"


def test_a_handler_with_a_stuck_job_is_slow_until_the_job_ends() -> None:
    scheduler = make_scheduler("stuck", "quick", workers=4)
    observe(scheduler, "stuck", 0.01)
    push(scheduler, make_lease(2, "stuck"))
    first, second = started(scheduler)
    assert plan_of(scheduler, START + STUCK_SECONDS).wanted["stuck"] > 3
    assert plan_of(scheduler, LATER).wanted["stuck"] == 1
    settle(scheduler, second)
    push(scheduler, make_lease(2, "stuck"))
    started(scheduler, LATER)
    assert plan_of(scheduler, LATER).wanted["stuck"] == 0
    settle(scheduler, first)
    assert plan_of(scheduler, LATER).wanted["stuck"] > 3


def test_a_stuck_batch_does_not_make_its_first_handler_slow() -> None:
    scheduler = make_scheduler("shared", "single", workers=4)
    observe(scheduler, "shared", 0.001)
    push(scheduler, make_lease(2, "shared"))
    assert one_run(scheduler).is_batch
    assert plan_of(scheduler, LATER).wanted["shared"] > 100


def test_jobs_of_paused_handlers_that_still_run_occupy_their_slots() -> None:
    scheduler = make_scheduler("paused", "slow", "quick", workers=4)
    observe(scheduler, "paused", SLOW_JOB_SECONDS)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    push(scheduler, make_lease(3, "paused"))
    started(scheduler)
    assert plan_of(scheduler, without={"paused"}).wanted["slow"] == 0


def test_a_busy_worker_asks_for_jobs_of_the_other_handlers_now_and_then() -> None:
    scheduler = make_scheduler("busy", "other", workers=4)
    observe(scheduler, "busy", 0.1)
    observe(scheduler, "other", 0.01)
    add(scheduler, make_lease(15, "busy"))
    started(scheduler)
    assert scheduler.next_claim(START + 0.2) is None
    plan = plan_of(scheduler, START + ASK_INTERVAL_SECONDS)
    assert plan == ClaimPlan({"busy": 0, "other": 150}, 150)
    assert scheduler.next_claim(START + ASK_INTERVAL_SECONDS + 0.2) is None


def test_a_busy_worker_does_not_ask_for_more_jobs_of_the_busy_handler() -> None:
    scheduler = make_scheduler("busy", "other", workers=4)
    observe(scheduler, "busy", 0.1)
    push(scheduler, make_lease(8, "busy"))
    plan = plan_of(scheduler)
    assert plan.wanted == {"busy": 0, "other": 3}, "eight are more than half of fifteen"


def test_fewer_quick_jobs_are_claimed_ahead_while_slow_ones_occupy_slots() -> None:
    scheduler = make_scheduler("slow", "quick", workers=4)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    observe(scheduler, "quick", 0.1)
    assert plan_of(scheduler).limit == 20 + 3
    push(scheduler, make_lease(3, "slow"))
    started(scheduler)
    assert plan_of(scheduler).limit == 5, "half a second of one slot"


def test_the_pace_of_idle_handlers_does_not_limit_a_claim() -> None:
    scheduler = make_scheduler("busy", "idle", workers=4)
    observe(scheduler, "busy", 0.01)
    observe(scheduler, "idle", 0.2)
    push(scheduler, make_lease(1, "busy"))
    assert plan_of(scheduler).limit == 199


def test_older_jobs_of_many_handlers_do_not_exclude_a_handler_from_the_claim() -> None:
    names = [f"handler {number}" for number in range(20)]
    scheduler = make_scheduler(*names, workers=2)
    for name in names:
        observe(scheduler, name, SLOW_SECONDS)
    assert plan_of(scheduler).limit == 20


def test_a_worker_that_holds_jobs_pauses_no_longer_than_until_one_is_stuck() -> None:
    scheduler = make_scheduler(workers=4)
    assert add(scheduler, make_lease(1)) == STUCK_SECONDS < POLL_SECONDS
    assert add(scheduler, None, next_due_seconds=0.3) == 0.3


# Giving back.


def test_jobs_claimed_ahead_are_given_back_when_their_handler_gets_stuck() -> None:
    scheduler = make_scheduler("stuck", "quick", workers=4)
    lease = make_lease(10, "stuck")
    push(scheduler, lease)
    runs = started(scheduler)
    assert scheduler.withdraw_excess(START + STUCK_SECONDS) == []
    assert scheduler.withdraw_excess(LATER) == leased_jobs(lease)[3:]
    assert scheduler.withdraw_excess(LATER) == []
    settle(scheduler, *runs)
    assert started(scheduler) == []
    assert plan_of(scheduler, LATER).wanted["stuck"] > 0, "they are not held"


def test_a_slow_handler_keeps_the_jobs_that_can_start() -> None:
    scheduler = make_scheduler("slow", "quick", workers=4)
    lease = make_lease(6, "slow")
    push(scheduler, lease)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    assert scheduler.withdraw_excess(START) == leased_jobs(lease)[3:]
    assert [run.jobs[0] for run in started(scheduler)] == leased_jobs(lease)[:3]


def test_slow_handlers_keep_together_what_can_start() -> None:
    scheduler = make_scheduler("a", "b", "quick", workers=4)
    observe(scheduler, "a", SLOW_JOB_SECONDS)
    observe(scheduler, "b", SLOW_JOB_SECONDS)
    push(scheduler, make_lease(1, "a"))
    settle(scheduler, one_run(scheduler), seconds=SLOW_JOB_SECONDS)
    first, others = make_lease(2, "a"), make_lease(2, "b")
    push(scheduler, first, others, make_lease(9, "quick"))
    assert scheduler.withdraw_excess(START) == leased_jobs(first)[1:], "it used more time"


def test_shareable_jobs_of_a_slow_handler_are_given_back() -> None:
    scheduler = make_scheduler("shared", "single", workers=4)
    lease = make_lease(6, "shared")
    push(scheduler, lease)
    observe(scheduler, "shared", SLOW_JOB_SECONDS)
    assert scheduler.withdraw_excess(START) == leased_jobs(lease)
    assert started(scheduler) == []


def test_a_handler_that_became_slower_gives_back_more_than_a_second_of_work() -> None:
    scheduler = make_scheduler("slower", "quick", workers=4)
    lease = make_lease(20, "slower")
    push(scheduler, lease)
    observe(scheduler, "slower", 0.01)
    assert scheduler.withdraw_excess(START) == []
    observe(scheduler, "slower", 0.2)
    assert scheduler.withdraw_excess(START) == leased_jobs(lease)[14:]
    assert scheduler.withdraw_excess(START) == []


def test_a_solo_job_of_a_slow_handler_is_kept() -> None:
    scheduler = make_scheduler("slow", "quick", workers=1)
    observe(scheduler, "slow", SLOW_JOB_SECONDS)
    add(scheduler, None, solo_waiting=True)
    add(scheduler, make_lease(1, "slow"))
    assert scheduler.withdraw_excess(START) == []


# Keys.


def test_a_settled_key_is_a_reason_to_claim_although_enough_is_held() -> None:
    scheduler = make_scheduler("keyed", "other", workers=2)
    push(scheduler, make_lease(90, "keyed"))
    plan_of(scheduler)  # asks for the other handler
    assert scheduler.next_claim(START) is None
    assert plan_of(scheduler, freed={"keyed"}) == ClaimPlan({"keyed": 1, "other": 0}, 1)


def test_a_settled_key_of_a_slow_handler_does_not_claim_ahead() -> None:
    scheduler = make_scheduler("keyed", "quick", workers=4)
    observe(scheduler, "keyed", SLOW_JOB_SECONDS)
    push(scheduler, make_lease(3, "keyed"), make_lease(9, "quick"))
    runs = started(scheduler)
    assert plan_of(scheduler, freed={"keyed"}).wanted == {"keyed": 0, "quick": 0}
    settle(scheduler, runs[0], seconds=SLOW_JOB_SECONDS)
    assert plan_of(scheduler, freed={"keyed"}).wanted["keyed"] == 1


def test_a_settled_key_of_a_paused_handler_is_not_claimed() -> None:
    scheduler = make_scheduler("keyed", "other", workers=4)
    plan = plan_of(scheduler, freed={"keyed"}, without={"keyed"})
    assert plan.wanted == {"other": 3}


def test_jobs_of_a_slow_handler_that_could_share_start_and_are_not_given_back() -> None:
    """An outage of the database makes every handler slow; it must become quick again."""
    scheduler = make_scheduler("shared", "other", workers=4, max_shared_transactions=4)
    observe(scheduler, "shared", SLOW_JOB_SECONDS)
    lease = make_lease(3, "shared")
    push(scheduler, lease)
    assert scheduler.withdraw_excess(START) == []
    runs = started(scheduler)
    assert [run.jobs for run in runs] == [[leased] for leased in leased_jobs(lease)]
    assert not any(run.is_batch for run in runs)
