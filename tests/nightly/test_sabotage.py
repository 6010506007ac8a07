"""The proof can fail: it turns red, and names the cause, when a promise is broken on purpose."""

import os
from dataclasses import dataclass, replace

import pytest

from prove import experiment
from prove.plan import Plan, StorePlan
from prove.retention import stage as retention
from prove.sabotage import VARIABLE, Sabotage
from prove.stages import StageRunner
from prove.workbench import StoreResult
from support.ledger_checker import Violation

SEED = 20_261_116
STORMS = 3
"""A fault shows only if it meets the right moment, such as a zombie within a transaction."""


def small_plan(
    *,
    events: int = 500,
    zombies: int = 0,
    crashes: int = 0,
    kills: int = 0,
    power_cuts: int = 0,
    baseline: float = 1.0,
) -> StorePlan:
    """Plan just enough faults for a sabotage to show."""
    return StorePlan(
        events=events,
        kills=kills,
        zombies=zombies,
        crashes=crashes,
        power_cuts=power_cuts,
        lost_commits=0,
        baseline_seconds=baseline,
        crash_seconds=1 if crashes else 0,
        kill_seconds=1 if kills else 0,
        zombie_seconds=6 if zombies else 0,
        cut_seconds=5,
    )


@dataclass(frozen=True)
class Case:
    sabotage: Sabotage
    plan: StorePlan
    violation: Violation


CASES = [
    Case(Sabotage.EARLY_RESPONSE, small_plan(crashes=1, baseline=0.5), Violation.LOST),
    Case(Sabotage.SETTLE_BY_ID, small_plan(zombies=3, baseline=0.5), Violation.APPLIED_TWICE),
    Case(Sabotage.NO_UNIQUE_KEY, small_plan(), Violation.RECORDED_TWICE),
    Case(Sabotage.NO_TRANSACTION, small_plan(), Violation.APPLIED_TWICE),
    Case(Sabotage.IGNORE_FILTERS, small_plan(baseline=0.5), Violation.FILTER_IGNORED),
    Case(Sabotage.WORKER_CLOCK, small_plan(), Violation.LEASE_LOST),
    Case(Sabotage.FORGET_IN_BATCH, small_plan(), Violation.APPLIED_TWICE),
    Case(Sabotage.EARLY_ON_FAILED, small_plan(kills=6, baseline=0.5), Violation.NOT_GIVEN_UP),
    Case(Sabotage.DELETE_IDS, small_plan(baseline=2.0), Violation.APPLIED_TWICE),
]


def apply_sabotage(monkeypatch: pytest.MonkeyPatch, sabotage: Sabotage) -> None:
    """Select a sabotage. A sabotaged service may never become idle, so the waits are short."""
    monkeypatch.setenv(VARIABLE, sabotage)
    monkeypatch.setattr(experiment, "DRAIN_SECONDS", 1.0)
    monkeypatch.setattr(experiment, "RECOVERY_SECONDS", 10.0)


def make_runner(store: str, store_plan: StorePlan) -> StageRunner:
    plan = Plan("small", minutes=1, stores={store: store_plan}, required=1.0, overrun=1.0)
    return StageRunner(store, plan, seed=SEED, show=lambda stage, done, total: None)


def violations_with_timeline(result: StoreResult) -> set[Violation]:
    return {finding.violation for _, finding in result.findings if finding.timeline}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sabotage.value)
def test_a_broken_promise_is_found(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    apply_sabotage(monkeypatch, case.sabotage)
    for _ in range(STORMS):
        runner = make_runner("postgres", case.plan)
        runner.storm()
        if runner.result.counts[case.violation]:
            break
    assert runner.result.counts[case.violation] > 0, runner.result
    is_about_an_event = case.violation is not Violation.LEASE_LOST
    if is_about_an_event:
        assert case.violation in violations_with_timeline(runner.result)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
@pytest.mark.parametrize("store", ["postgres", "sqlite"])
def test_a_power_cut_shows_that_commits_are_not_synced(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    apply_sabotage(monkeypatch, Sabotage.WEAK_SYNC)
    runner = make_runner(store, small_plan(power_cuts=1))
    runner.power_cuts()
    assert runner.result.counts[Violation.LOST] > 0, runner.result


FORGETTING = {
    Sabotage.FORGET_STATES: Violation.STATE_LOST,
    Sabotage.DROP_NEEDED: Violation.PAYLOAD_LOST,
    Sabotage.DROP_UNARCHIVED: Violation.NOT_ARCHIVED,
}


@pytest.mark.parametrize("sabotage", FORGETTING)
def test_maintenance_that_forgets_too_much_is_found(
    monkeypatch: pytest.MonkeyPatch, sabotage: Sabotage
) -> None:
    apply_sabotage(monkeypatch, sabotage)
    monkeypatch.setattr(retention, "BUSY_SECONDS", 0.0)
    runner = make_runner("sqlite", replace(small_plan(), retention_seconds=3))
    retention.keep_and_forget(runner)
    assert runner.result.counts[FORGETTING[sabotage]] > 0, runner.result


@pytest.mark.parametrize("store", ["postgres", "sqlite"])
def test_without_sabotage_nothing_is_found(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    runner = make_runner(store, small_plan(crashes=1, zombies=1, kills=3, baseline=0.5))
    runner.storm()
    assert not runner.result.counts, runner.result.findings
    assert runner.result.tally["kills"] >= 3
