"""A stage whose program is missing is reported as not run, and nothing is required of it."""

import pytest

from prove.history import History
from prove.plan import SHORT
from prove.poolers import run_behind_poolers
from prove.stages import StageRunner
from prove.verdict import requirements
from prove.workload import Workload
from support.client_history import Outcome
from support.programs import ProgramMissing, find_library, find_program

ACCEPTED = (202, b"{}")
DUPLICATE = (202, b'{"duplicate":true}')


def make_runner() -> StageRunner:
    return StageRunner("postgres", SHORT, seed=1, show=lambda stage, done, total: None)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ProgramMissing, match="no-such-program is not installed"):
        find_program("no-such-program")
    with pytest.raises(ProgramMissing, match=r"libnone\.so is not installed"):
        find_library("*/libnone.so")


def test_a_stage_without_its_program_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    runner = make_runner()
    run_behind_poolers(runner)
    assert runner.result.not_run == {"poolers": "pgbouncer is not installed"}
    assert not runner.result.counts
    assert requirements(SHORT, [runner.result]) == []


def test_a_stage_that_was_run_must_reach_its_minimum() -> None:
    runner = make_runner()
    with runner.stage("frozen host"):
        pass
    (required,) = requirements(SHORT, [runner.result])
    assert (required.what, required.reached, required.is_met) == ("frozen hosts", 0, False)


def test_responses_before_an_older_ledger_promise_nothing() -> None:
    history = History(Workload(1, "test"))
    gone, present = history.workload.new(), history.workload.new()
    for number in (gone, present):
        history.record(number, 0, ACCEPTED, 0.0, 0.1)
    history.void(2)
    history.record(gone, 0, ACCEPTED, 1.0, 1.1)
    history.record(present, 0, DUPLICATE, 1.0, 1.1)
    events = {event.number: event for event in history.summary().events()}
    assert events[gone][2:5] == (2, 1, 1)
    assert events[present][2:5] == (2, 1, 0)
    assert {gone, present} == history.acknowledged(2)
    assert {gone} == history.reported_as_new(2)
    assert 4 == len(history) == sum(history.outcomes().values())
    assert history.outcomes()[Outcome.DUPLICATE] == 1
