"""The handler that used the least time starts next, and each has its share of claims."""

from collections import Counter

from onceward.work.claiming.scheduler import Scheduler
from onceward.work.claiming.time_accounts import TimeAccounts
from onceward.work.running.batching import BatchOutcome
from tests.scheduling import (
    START,
    handler_of,
    handlers_of,
    leased_jobs,
    make_lease,
    make_scheduler,
    observe,
    one_run,
    plan_of,
    push,
    settle,
    started,
)


def run_next(scheduler: Scheduler, seconds: float, *, failed: bool = False) -> str:
    """Start one job, settle it, and return its handler."""
    run = scheduler.next_run(START)
    assert run is not None
    settle(scheduler, run, seconds=seconds, failed=failed)
    return handler_of(run)


# The accounts.


def test_the_handler_that_used_the_least_time_is_next() -> None:
    accounts = TimeAccounts(["a", "b", "c"])
    accounts.charge("a", 3.0)
    accounts.charge("b", 1.0)
    accounts.charge("c", 2.0)
    assert accounts.least_used(["a", "b", "c"]) == "b"
    assert accounts.least_used(["a", "c"]) == "c"
    assert accounts.least_used([]) is None
    assert accounts.by_use(["a", "b", "c"]) == ["b", "c", "a"]


def test_a_handler_that_was_idle_has_not_saved_time_up() -> None:
    accounts = TimeAccounts(["busy", "stuck", "idle"])
    accounts.charge("stuck", 0.01)
    for _ in range(100):
        accounts.charge("busy", 1.0)
    accounts.charge("stuck", 0.01)
    accounts.rejoin("idle")
    accounts.charge("idle", 2.0)
    assert accounts.least_used(["busy", "idle"]) == "busy"


def test_a_handler_does_not_owe_time_that_nobody_else_wanted() -> None:
    accounts = TimeAccounts(["early", "late"])
    for _ in range(100):
        accounts.charge("early", 1.0)
    accounts.rejoin("late")
    accounts.charge("late", 2.0)
    accounts.rejoin("early")
    assert accounts.least_used(["early", "late"]) == "early"


def test_a_handler_that_comes_back_still_owes_its_last_job() -> None:
    accounts = TimeAccounts(["dear", "cheap"])
    accounts.charge("dear", 10.0)
    accounts.charge("cheap", 1.0)
    accounts.rejoin("dear")
    assert accounts.least_used(["dear", "cheap"]) == "cheap"


# Starts.


def test_handlers_get_the_same_time_and_not_the_same_number_of_jobs() -> None:
    scheduler = make_scheduler("long", "short")
    seconds = {"long": 0.1, "short": 0.01}
    for name, mean_seconds in seconds.items():
        observe(scheduler, name, mean_seconds)
    push(scheduler, make_lease(100, "long"), make_lease(100, "short"))
    runs: Counter[str] = Counter()
    for _ in range(55):
        run = one_run(scheduler)
        settle(scheduler, run, seconds=seconds[handler_of(run)])
        runs[handler_of(run)] += 1
    assert runs == {"long": 5, "short": 50}


def test_a_failing_handler_gets_a_tenth_of_the_time_until_it_recovers() -> None:
    scheduler = make_scheduler("failing", "healthy")
    for _ in range(100):
        scheduler.complete_job("failing", 0.01, failed=True)
        scheduler.complete_job("healthy", 0.01)
    push(scheduler, make_lease(300, "failing"), make_lease(300, "healthy"))
    runs: Counter[str] = Counter()
    for _ in range(110):
        run = one_run(scheduler)
        runs[handler_of(run)] += 1
        settle(scheduler, run, seconds=0.01, failed=handler_of(run) == "failing")
    assert 9 <= runs["failing"] <= 11
    for _ in range(100):
        scheduler.complete_job("failing", 0.01)
    later = Counter(run_next(scheduler, 0.01) for _ in range(40))
    assert 19 <= later["failing"] <= 21


def test_an_idle_handler_cannot_save_time_up_beside_one_that_hangs() -> None:
    scheduler = make_scheduler("hanging", "busy", "idle", workers=2)
    push(scheduler, make_lease(1, "hanging"))
    one_run(scheduler)
    observe(scheduler, "busy", 0.1)
    observe(scheduler, "idle", 0.1)
    push(scheduler, make_lease(60, "busy"))
    for _ in range(50):
        run_next(scheduler, 0.1)
    push(scheduler, make_lease(10, "idle"))
    assert Counter(run_next(scheduler, 0.1) for _ in range(10)) == {"busy": 5, "idle": 5}


def test_a_handler_that_worked_while_the_others_were_idle_does_not_owe_them() -> None:
    scheduler = make_scheduler("early", "late")
    observe(scheduler, "early", 0.1)
    observe(scheduler, "late", 0.1)
    push(scheduler, make_lease(50, "early"))
    for _ in range(50):
        run_next(scheduler, 0.1)
    push(scheduler, make_lease(10, "late"))
    run_next(scheduler, 0.1)
    push(scheduler, make_lease(10, "early"))
    assert Counter(run_next(scheduler, 0.1) for _ in range(10)) == {"early": 5, "late": 5}


def test_batches_are_not_charged_to_the_single_jobs_of_their_handlers() -> None:
    scheduler = make_scheduler("shared", "single")
    observe(scheduler, "single", 0.01)
    push(scheduler, make_lease(1000, "shared"))
    while (run := scheduler.next_run(START)) is not None and len(run.jobs) < 8:
        settle(scheduler, run)
    assert run is not None
    for _ in range(50):
        settle(scheduler, run, seconds=0.08)
        run = one_run(scheduler)
    push(scheduler, make_lease(100))
    scheduler.complete_batch(BatchOutcome(retry_alone=run.jobs[:1]), seconds=0.01)
    scheduler.free_slot(run)
    scheduler.withdraw(lambda leased: leased.job.handler == "shared" and leased not in run.jobs)
    assert "shared" in [run_next(scheduler, 0.01) for _ in range(3)]


def test_a_job_to_retry_alone_does_not_use_time_that_its_handler_saved_up() -> None:
    scheduler = make_scheduler("shared", "single")
    observe(scheduler, "single", 0.01)
    observe(scheduler, "shared", 0.05)
    push(scheduler, make_lease(50))
    for _ in range(40):
        run_next(scheduler, 0.01)
    push(scheduler, make_lease(2, "shared"))
    batch = one_run(scheduler)
    scheduler.complete_batch(BatchOutcome(retry_alone=batch.jobs), seconds=0.01)
    scheduler.free_slot(batch)
    order = [run_next(scheduler, 0.01) for _ in range(3)]
    assert order == ["shared", "single", "single"]


def test_jobs_of_a_handler_start_in_the_order_of_their_leases() -> None:
    scheduler = make_scheduler("a", "b", workers=4)
    leases = [make_lease(3, "a"), make_lease(2, "b"), make_lease(3, "a")]
    push(scheduler, *leases)
    order = []
    while runs := started(scheduler):
        order += [run.jobs[0] for run in runs if handler_of(run) == "a"]
        settle(scheduler, *runs)
    assert order == leased_jobs(leases[0], leases[2])


# Claims.


def test_a_failing_handler_claims_a_tenth_ahead() -> None:
    scheduler = make_scheduler("failing", "healthy", workers=8)
    for _ in range(100):
        scheduler.complete_job("failing", 0.1, failed=True)
        scheduler.complete_job("healthy", 0.1)
    wanted = plan_of(scheduler).wanted
    assert (wanted["failing"], wanted["healthy"]) == (3, 35)


def test_a_failing_handler_with_few_jobs_still_claims_one() -> None:
    scheduler = make_scheduler("failing", "healthy", workers=2)
    for _ in range(100):
        scheduler.complete_job("failing", 0.2, failed=True)
    assert plan_of(scheduler).wanted["failing"] == 1


def test_handlers_with_jobs_share_the_claim() -> None:
    scheduler = make_scheduler("a", "b", "c", "d", "e", workers=8)
    for name in "abcde":
        observe(scheduler, name, 0.05)
    assert set(plan_of(scheduler).wanted.values()) == {70}, "nobody has jobs"
    push(scheduler, *(make_lease(1, name) for name in "abcd"))
    plan = plan_of(scheduler)
    assert plan.limit == 76
    assert plan.wanted == {"a": 34, "b": 34, "c": 34, "d": 34, "e": 35}


def test_a_claim_of_many_handlers_is_no_more_than_half_a_second_of_work() -> None:
    scheduler = make_scheduler("a", "b", "c", "d", workers=8)
    for name in "abcd":
        observe(scheduler, name, 0.2)
    assert plan_of(scheduler).limit == 20


def test_waiting_handlers_start_in_turn() -> None:
    scheduler = make_scheduler("a", "b", "c", workers=4)
    push(scheduler, make_lease(5, "a"), make_lease(5, "b"), make_lease(5, "c"))
    assert sorted(handlers_of(started(scheduler))[:3]) == ["a", "b", "c"]
