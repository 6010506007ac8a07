"""The stages of a store that freezes or vanishes, of poolers and of the queue can fail.

The sabotages of the failover, the time limit, the clock steps, the pauses, late outside calls and
the times of the queue take too long for a test; docs/proof.md has their commands.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from prove import cancellations, experiment, frozen_host, poolers, vanished_file
from prove.hostile_content.stage import send_hostile_content
from prove.late_settlements import settle_late
from prove.outside.stage import call_outside
from prove.plan import SHORT, StorePlan
from prove.queueing.rules import keep_rules
from prove.sabotage import VARIABLE, Sabotage
from prove.stages import StageRunner
from prove.staleness.stage import change_objects
from prove.workbench import Workbench
from support.ledger_checker import Violation

SEED = 20_261_117
SHORT_QUEUE = {"queue_seconds": 2, "queue_kills": 0, "pauses": 0}


@dataclass(frozen=True)
class Case:
    sabotage: Sabotage
    store: str
    run: Callable[[Workbench], None]
    violation: Violation
    plan: Mapping[str, int]
    limits: tuple[tuple[ModuleType, str], ...] = ()
    """Limits of time that the sabotage will exceed."""
    limit_seconds: float = 1.0
    or_violation: Violation | None = None
    """What is found instead on a busy machine."""


CASES = [
    Case(Sabotage.NO_FENCE, "postgres", settle_late, Violation.SETTLED_LATE, {}),
    Case(Sabotage.NO_FENCE, "sqlite", settle_late, Violation.SETTLED_LATE, {}),
    Case(
        Sabotage.IGNORE_VERSIONS,
        "sqlite",
        change_objects,
        Violation.STALE_APPLIED,
        {"version_kills": 1},
    ),
    Case(
        Sabotage.SKIP_UNREAD,
        "sqlite",
        send_hostile_content,
        Violation.FILTER_PASSED_BY,
        {"hostile_bodies": 100},
    ),
    Case(
        Sabotage.BLIND_CALLS,
        "sqlite",
        call_outside,
        Violation.CALLED_TWICE,
        {"effect_kills": 1},
    ),
    Case(
        Sabotage.FRESH_IDS,
        "sqlite",
        call_outside,
        Violation.CALLED_TWICE,
        {"effect_kills": 1},
    ),
    Case(
        Sabotage.ALWAYS_READY,
        "postgres",
        frozen_host.freeze_host,
        Violation.NOT_REPORTED,
        {"freezes": 1},
        ((frozen_host, "REPORT_LIMIT_SECONDS"),),
    ),
    Case(
        Sabotage.LEAK_CONNECTIONS,
        "postgres",
        cancellations.cancel_operations,
        Violation.LEAKED,
        {"cancellations": 100},
        ((cancellations, "ENDING_SECONDS"),),
    ),
    Case(
        Sabotage.SHARED_SESSIONS,
        "postgres",
        poolers.run_behind_poolers,
        Violation.NOT_RECOVERED,
        {},
        ((experiment, "RECOVERY_SECONDS"),),
        limit_seconds=5.0,  # session mode must recover within it
        or_violation=Violation.UNFINISHED,
    ),
    Case(
        Sabotage.IGNORE_FILE,
        "sqlite",
        vanished_file.vanish,
        Violation.LOST,
        {"removed_files": 1},
        ((vanished_file, "END_LIMIT_SECONDS"),),
    ),
    Case(Sabotage.NO_KEY_CHECK, "postgres", keep_rules, Violation.OVERLAPPED, SHORT_QUEUE),
    Case(Sabotage.NO_CAP, "postgres", keep_rules, Violation.LIMIT_EXCEEDED, SHORT_QUEUE),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sabotage}-{case.store}")
def test_a_sabotaged_store_is_found(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setenv(VARIABLE, case.sabotage)
    monkeypatch.setattr(experiment, "DRAIN_SECONDS", 5.0)
    for module, limit in case.limits:
        monkeypatch.setattr(module, limit, case.limit_seconds)
    runner = make_runner(case.store, **case.plan)
    case.run(runner)
    for reason in runner.result.not_run.values():
        pytest.skip(reason)
    assert {case.violation, case.or_violation} & runner.result.counts.keys(), runner.result


@pytest.mark.parametrize("store", ["postgres", "sqlite"])
def test_an_intact_store_refuses_late_settlements(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    runner = make_runner(store)
    settle_late(runner)
    assert not runner.result.counts, runner.result.findings
    assert runner.result.tally.total() == 3


@pytest.mark.parametrize("store", ["postgres", "sqlite"])
def test_an_intact_queue_keeps_its_rules(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    runner = make_runner(store, **SHORT_QUEUE)
    keep_rules(runner)
    assert not runner.result.counts, runner.result.findings
    assert runner.result.tally["ordered jobs done"] > 0


def make_runner(store: str, **counts: int) -> StageRunner:
    store_plan: StorePlan = replace(SHORT.stores[store], **counts)
    plan = replace(SHORT, stores={store: store_plan})
    return StageRunner(store, plan, seed=SEED, show=lambda stage, done, total: None)
