"""The proof is worth something: with a promise broken on purpose it is red, and says why."""

import os
from dataclasses import dataclass

import pytest

from prove import trial
from prove.checker import Rule
from prove.plan import Plan, StorePlan
from prove.sabotage import CHOICE, Sabotage
from prove.stages import Result, Stages

SEED = 20_261_116


def plan(
    *,
    events: int = 500,
    zombies: int = 0,
    crashes: int = 0,
    kills: int = 0,
    power_cuts: int = 0,
    calm: float = 1.0,
) -> StorePlan:
    """A small one, of what a sabotage needs to show."""
    return StorePlan(
        events=events,
        kills=kills,
        zombies=zombies,
        crashes=crashes,
        power_cuts=power_cuts,
        lost_commits=0,
        calm_seconds=calm,
        crash_seconds=1 if crashes else 0,
        kill_seconds=1 if kills else 0,
        zombie_seconds=6 if zombies else 0,
        cut_seconds=5,
    )


@dataclass(frozen=True)
class Case:
    sabotage: Sabotage
    plan: StorePlan
    finding: Rule


CASES = [
    Case(Sabotage.EARLY_ANSWER, plan(crashes=1, calm=0.5), Rule.LOST),
    Case(Sabotage.NO_FENCE, plan(zombies=3, calm=0.5), Rule.TWICE_DONE),
    Case(Sabotage.NO_UNIQUE_KEY, plan(), Rule.TWICE_RECORDED),
    Case(Sabotage.OUTSIDE, plan(), Rule.TWICE_DONE),
    Case(Sabotage.WORKER_CLOCK, plan(), Rule.LEASE_LOST),
    Case(Sabotage.FORGETFUL_PURGE, plan(calm=2.0), Rule.TWICE_DONE),
]


def sabotage(monkeypatch: pytest.MonkeyPatch, choice: Sabotage) -> None:
    """Break something. It may never come to rest, and need not."""
    monkeypatch.setenv(CHOICE, choice)
    monkeypatch.setattr(trial, "REST_SECONDS", 1.0)
    monkeypatch.setattr(trial, "BACK_SECONDS", 10.0)


def stages(store: str, small: StorePlan) -> Stages:
    whole = Plan("small", minutes=1, stores={store: small}, required=1.0, patience=1.0)
    return Stages(store, whole, seed=SEED, show=lambda stage, done, total: None)


def told(result: Result) -> set[Rule]:
    """The rules that were broken by an event whose timeline is told."""
    return {finding.rule for _, finding in result.findings if finding.timeline}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sabotage.value)
def test_a_promise_broken_on_purpose_is_found(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    sabotage(monkeypatch, case.sabotage)
    run = stages("postgres", case.plan)
    run.storm()
    assert run.result.counts[case.finding] > 0, run.result
    assert case.finding is Rule.LEASE_LOST or case.finding in told(run.result)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
@pytest.mark.parametrize("store", ["postgres", "sqlite"])
def test_what_is_not_synced_does_not_survive_a_power_cut(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    sabotage(monkeypatch, Sabotage.WEAK_SYNC)
    run = stages(store, plan(power_cuts=1))
    run.power_cuts()
    assert run.result.counts[Rule.LOST] > 0, run.result


@pytest.mark.parametrize("store", ["postgres", "sqlite"])
def test_the_same_without_sabotage_is_green(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.delenv(CHOICE, raising=False)
    run = stages(store, plan(crashes=1, zombies=1, kills=3, calm=0.5))
    run.storm()
    assert not run.result.counts, run.result.findings
    assert run.result.tally["kills"] >= 3
