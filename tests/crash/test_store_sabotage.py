"""The stages of a store that freezes or vanishes can fail: each turns red when sabotaged.

The sabotages of the failover, the poolers and the clock steps take too long for a test;
docs/proof.md has their commands.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from prove import cancellations, experiment, frozen_host, vanished_file
from prove.plan import SHORT, StorePlan
from prove.sabotage import VARIABLE, Sabotage
from prove.stages import StageRunner
from prove.workbench import Workbench
from support.ledger_checker import Violation

SEED = 20_261_117


@dataclass(frozen=True)
class Case:
    sabotage: Sabotage
    store: str
    run: Callable[[Workbench], None]
    violation: Violation
    plan: dict[str, int]
    limits: tuple[tuple[ModuleType, str], ...] = ()
    """Limits of time that the sabotage will exceed."""


CASES = [
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
        Sabotage.IGNORE_FILE,
        "sqlite",
        vanished_file.vanish,
        Violation.LOST,
        {"removed_files": 1},
        ((vanished_file, "END_LIMIT_SECONDS"),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sabotage.value)
def test_a_sabotaged_store_is_found(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setenv(VARIABLE, case.sabotage)
    monkeypatch.setattr(experiment, "DRAIN_SECONDS", 5.0)
    for module, limit in case.limits:
        monkeypatch.setattr(module, limit, 1.0)
    runner = make_runner(case.store, **case.plan)
    case.run(runner)
    assert runner.result.counts[case.violation] > 0, runner.result


def make_runner(store: str, **counts: int) -> StageRunner:
    store_plan: StorePlan = replace(SHORT.stores[store], **counts)
    plan = replace(SHORT, stores={store: store_plan})
    return StageRunner(store, plan, seed=SEED, show=lambda stage, done, total: None)
