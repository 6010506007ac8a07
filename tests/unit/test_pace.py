"""The pace of a handler follows the durations and the failures of its jobs."""

import pytest

from onceward.work.claiming.pace import MIN_WEIGHT, SLOW_SECONDS, HandlerPace


def observe(pace: HandlerPace, seconds: float, *, jobs: int = 1, failed: bool = False) -> None:
    for _ in range(jobs):
        pace.observe(seconds, failed=failed)


def test_a_handler_that_has_not_run_counts_as_quick_and_healthy() -> None:
    pace = HandlerPace()
    assert (pace.is_known, pace.is_slow, pace.weight) == (False, False, 1.0)


def test_the_first_job_sets_the_mean_and_later_ones_move_it() -> None:
    pace = HandlerPace()
    observe(pace, 0.4)
    assert (pace.is_known, pace.mean_seconds) == (True, 0.4)
    observe(pace, 0.2)
    assert pace.mean_seconds == pytest.approx(0.38)


def test_a_handler_is_slow_above_the_limit_and_until_its_mean_falls_again() -> None:
    pace = HandlerPace()
    is_slow = []
    for seconds in (SLOW_SECONDS, 2 * SLOW_SECONDS, *[0.01] * 10):
        observe(pace, seconds)
        is_slow.append(pace.is_slow)
    assert (is_slow[:2], is_slow[-1]) == ([False, True], False)


def test_the_weight_falls_to_a_tenth_while_jobs_fail_and_recovers() -> None:
    pace = HandlerPace()
    observe(pace, 0.01, failed=True)
    assert pace.weight == pytest.approx(0.91), "one failure says little"
    observe(pace, 0.01, jobs=100, failed=True)
    assert pace.weight == pytest.approx(MIN_WEIGHT, abs=0.001)
    assert pace.weight >= MIN_WEIGHT
    observe(pace, 0.01, jobs=50)
    assert pace.weight > 0.99


def test_a_job_costs_its_mean_duration_and_more_while_jobs_fail() -> None:
    pace = HandlerPace()
    observe(pace, 0.2)
    assert pace.cost_seconds == pytest.approx(0.2)
    observe(pace, 0.2, jobs=100, failed=True)
    assert pace.cost_seconds == pytest.approx(2.0, rel=0.01)


def test_jobs_that_take_no_time_cost_a_little() -> None:
    pace = HandlerPace()
    observe(pace, 0.0)
    assert pace.cost_seconds > 0
