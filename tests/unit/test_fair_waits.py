"""In simulated time, no handler keeps the jobs of another one waiting."""

from itertools import pairwise

import pytest

from tests.simulated_worker import CLAIM_SECONDS, Model, SimulatedWorker

SECONDS = 10.0
HANG_SECONDS = 7.5
QUICK = Model(seconds=0.01, jobs_per_second=20)

NEIGHBOURS: dict[str, dict[str, Model]] = {
    "nothing": {},
    "failing": {"failing": Model(seconds=0.02, backlog=2_000, fails=True)},
    "slow": {"slow": Model(seconds=2.0, backlog=2_000)},
    "hanging": {"hanging": Model(seconds=HANG_SECONDS, backlog=2_000, fails=True)},
    "backlog": {"backlog": Model(seconds=0.02, backlog=10_000)},
    "not quite slow": {"sluggish": Model(seconds=0.2, backlog=2_000)},
    "hangs suddenly": {"changing": Model(seconds=0.005, backlog=10_000, slower_from=2.5)},
    "becomes slower": {
        "changing": Model(seconds=0.005, backlog=10_000, slower_from=2.5, slower_seconds=0.2)
    },
    "many slow": {f"slow {n}": Model(seconds=0.3 * n, backlog=2_000) for n in range(1, 9)},
    "many sluggish": {f"sluggish {n}": Model(seconds=0.2, backlog=2_000) for n in range(8)},
    "everything": {
        "failing": Model(seconds=0.02, backlog=2_000, fails=True),
        "slow": Model(seconds=2.0, backlog=2_000),
        "hanging": Model(seconds=HANG_SECONDS, backlog=2_000, fails=True),
        "backlog": Model(seconds=0.02, backlog=10_000),
        "sluggish": Model(seconds=0.2, backlog=2_000),
    },
}


@pytest.mark.parametrize("workers", [4, 16])
def test_a_quick_handler_keeps_its_pace_beside_any_other(
    workers: int, subtests: pytest.Subtests
) -> None:
    for neighbours, models in NEIGHBOURS.items():
        with subtests.test(neighbours):
            worker = SimulatedWorker({"quick": QUICK, **models}, workers=workers)
            worker.run(SECONDS)
            waits = sorted(worker.waits["quick"])
            assert worker.ended["quick"] >= 0.9 * SECONDS * QUICK.jobs_per_second
            assert waits[int(0.99 * len(waits))] < 1.0
            assert worker.claims < SECONDS / CLAIM_SECONDS / 2, "it claims without a pause"


@pytest.mark.parametrize("workers", [4, 16])
def test_a_handler_that_gets_its_first_job_late_does_not_wait_for_one_that_hangs(
    workers: int,
) -> None:
    late = Model(seconds=0.01, jobs_per_second=20, first_at=2.5)
    models = {"quick": QUICK, **NEIGHBOURS["hanging"], "late": late}
    worker = SimulatedWorker(models, workers=workers)
    worker.run(SECONDS)
    assert max(worker.waits["late"]) < 0.5
    assert max(worker.waits["quick"]) < 1.0


@pytest.mark.parametrize("workers", [4, 16])
def test_no_handler_starves_beside_all_others(workers: int) -> None:
    worker = SimulatedWorker({"quick": QUICK, **NEIGHBOURS["everything"]}, workers=workers)
    worker.run(2 * SECONDS)
    longest = {
        name: max(later - earlier for earlier, later in pairwise([0.0, *starts, 2 * SECONDS]))
        for name, starts in worker.starts.items()
    }
    assert {"quick", "failing", "backlog", "sluggish", "slow", "hanging"} == longest.keys()
    assert max(longest[name] for name in ("quick", "failing", "backlog", "sluggish")) < 1.0
    assert max(longest.values()) < 1.5 * HANG_SECONDS, "slow handlers wait for those that hang"


@pytest.mark.parametrize("workers", [4, 16])
def test_slow_handlers_with_a_backlog_get_the_same_time(workers: int) -> None:
    worker = SimulatedWorker({"quick": QUICK, **NEIGHBOURS["many slow"]}, workers=workers)
    worker.run(4 * SECONDS)
    used = [model.seconds * worker.ended[name] for name, model in NEIGHBOURS["many slow"].items()]
    longest_job = max(model.seconds for model in NEIGHBOURS["many slow"].values())
    assert max(used) - min(used) < 3 * longest_job


def test_a_quick_handler_does_not_slow_down_a_backlog() -> None:
    models = {"quick": QUICK, "backlog": Model(seconds=0.02, backlog=10_000)}
    worker = SimulatedWorker(models, workers=4)
    worker.run(SECONDS)
    assert worker.ended["backlog"] > 0.9 * 3 * SECONDS / 0.02
