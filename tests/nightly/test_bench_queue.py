"""The benchmarks of the queue: what they count, and when their clocks start and stop."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest

from bench.contenders.interface import ContenderConfig
from bench.load_generator import LoadReport
from bench.losses import find_losses
from bench.parallel import ParallelGroup
from bench.processes import TrialFailed
from bench.registry import (
    BY_NAME,
    DBOS,
    IN_REQUEST,
    NEIGHBOURS_LOOP,
    ONCEWARD_OWN,
    PGQUEUER,
    POSTGRES,
    SEPARATE_LOOPS,
    STORES,
    select,
)
from bench.results import Results, Sample
from bench.run import Options, Receiver, Run, Schedule
from bench.schedule import PUBLISHED
from bench.suite import fairness, latency, recovery
from bench.tables import make_tables
from bench.workloads import STATEMENTS, create_handler_tables, sqlite_file

EN_DASH = "\N{EN DASH}"
LIMIT_MS = fairness.LIMIT_SECONDS * 1_000


def results(benchmark: str, case: str, **values: list[dict[str, float]]) -> Results:
    """Return results with the rounds of each contender, whose names are written with _ for -."""
    found = Results(benchmark, "postgres")
    for name, rounds in values.items():
        contender = name.replace("_", "-")
        found.samples += [
            Sample(contender, case, number, sample) for number, sample in enumerate(rounds)
        ]
    return found


def test_a_wait_that_reaches_its_limit_is_shown_as_longer() -> None:
    over = {"done": 0.0, "first_s": recovery.LIMIT_SECONDS, "last_s": recovery.LIMIT_SECONDS}
    within = {"done": 16.0, "first_s": 20.0, "last_s": 21.5}
    killed = results("recovery", recovery.DEFAULTS, pgqueuer=[within, within, over], dbos=[over])
    values = {"rate": 0.0, "p50_ms": 12.0, "p99_ms": LIMIT_MS}
    waited = results("fairness", fairness.ALONE, loop_neighbours=[values])

    (pgqueuer, dbos), (fair,) = (make_tables(found)[0].rows for found in (killed, waited))

    assert [cell.split(EN_DASH)[-1] for cell in pgqueuer[2:]] == ["over 60)", "over 60)", "16)"]
    assert [cell.partition(" ")[0] for cell in pgqueuer[2:]] == ["20.0", "21.5", "16"]
    assert dbos[2:] == ["over 60", "over 60", "0"]
    assert fair[2:] == ["0", "12.0", "over 15,000"]


def test_a_contender_that_recovers_or_serves_sooner_is_a_loss() -> None:
    killed = results(
        "recovery",
        recovery.RESTARTED,
        onceward_own=[{"last_s": 3.5}],
        dbos=[{"last_s": 2.5}],
        pgqueuer=[{"last_s": 12.0}],
    )
    slow, quick = {"p50_ms": 5.0, "p99_ms": 9.0}, {"p50_ms": 3.0, "p99_ms": 9.0}
    waited = results("fairness", fairness.ALONE, onceward_own=[slow], loops_separate=[quick])

    losses = find_losses([killed, waited])

    assert [(loss.contender, loss.value, loss.onceward_value) for loss in losses] == [
        ("dbos", "2.5 s", "3.5 s"),
        (SEPARATE_LOOPS, "3.0 ms", "5.0 ms"),
    ]


def test_a_contender_that_cannot_be_prepared_does_not_stop_the_others() -> None:
    contenders = [BY_NAME[name] for name in (ONCEWARD_OWN, PGQUEUER, NEIGHBOURS_LOOP)]
    prepared: list[str] = []

    def prepare(contender: Any) -> None:
        prepared.append(contender.name)
        if contender.name == PGQUEUER:
            raise TrialFailed("PgQueuer has no table")

    group = ParallelGroup(
        contenders, prepare, lambda contender: [Sample(contender.name, "", 0, {})]
    )

    for contender in contenders:
        if contender.name == PGQUEUER:
            with pytest.raises(TrialFailed, match="PgQueuer has no table"):
                group.result(contender)
        else:
            assert [sample.contender for sample in group.result(contender)] == [contender.name]
    assert prepared == [contender.name for contender in contenders]


def test_the_rounds_kill_in_different_phases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    delays: list[tuple[str, float]] = []

    def run_trial(_: Run, case: str, number: int, delay: float, __: Any) -> list[Sample]:
        assert number < 3
        delays.append((case, delay))
        return []

    monkeypatch.setattr(recovery, "_run_trial", run_trial)
    monkeypatch.setattr(recovery, "_prepare", lambda *_: None)
    run = make_run(tmp_path, monkeypatch)
    for trial in recovery.plan(run, Schedule(rounds=3)):
        trial.run()

    assert delays[:3] == [(recovery.DEFAULTS, delay) for delay in (0.0, 10.0, 20.0)]
    assert [case for case, _ in delays[3:]] == [recovery.RESTARTED] * 3
    assert [delay for _, delay in delays[3:]] == pytest.approx([0.0, 10 / 3, 20 / 3])


@pytest.fixture
def config(tmp_path: Path) -> ContenderConfig:
    """Return a config whose database has the row of one committed job."""
    config = ContenderConfig(f"sqlite:///{tmp_path / 'bench.db'}")
    create_handler_tables(config.database)
    with closing(sqlite3.connect(sqlite_file(config.database))) as file, file:
        file.execute(STATEMENTS["insert"], {"event_id": "evt_1", "account": 1, "amount": 1})
    return config


class Worker:
    """A worker process that runs, with the CPU time that it had used at each look."""

    log = ""

    def __init__(self, *cpu_seconds: float) -> None:
        self.looks = iter(cpu_seconds)

    def cpu_seconds(self) -> float:
        return next(self.looks)

    def check(self) -> None:
        pass


class Process(Worker):
    """A process of a contender that serves and works at once."""

    started: ClassVar[list["Process"]] = []

    def __init__(self, _: str, role: str, config: ContenderConfig) -> None:
        super().__init__()
        self.role, self.config = role, config
        self.started.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_until_serving(self) -> None:
        pass

    def kill(self) -> None:
        pass


class EndingWorker(Process):
    """A process that ends by itself if it is a worker."""

    def check(self) -> None:
        if self.role == "work":
            raise TrialFailed("the worker exited")


def make_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a run that deploys contenders without a database."""

    @contextmanager
    def deployed(*_: object, **more: Any) -> Iterator[ContenderConfig]:
        yield ContenderConfig("sqlite:///x", **more)

    run = Run(Options(contenders=[ONCEWARD_OWN]), databases=None, folder=folder)  # type: ignore[arg-type]
    monkeypatch.setattr(run, "deployed", deployed)
    return run


def recover(config: ContenderConfig, jobs: int, killed_at: float) -> dict[str, float]:
    worker: Any = Worker()
    return recovery._recover(config, worker, jobs, killed_at)


def test_a_job_that_was_done_before_the_kill_is_not_recovered(config: ContenderConfig) -> None:
    with pytest.raises(TrialFailed, match="before the kill"):
        recover(config, jobs=1, killed_at=time.time() + 60.0)


def test_the_jobs_that_are_done_within_the_limit_are_timed(
    config: ContenderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = recover(config, jobs=1, killed_at=time.time() - 5.0)
    monkeypatch.setattr(recovery, "LIMIT_SECONDS", 6.0)
    partly = recover(config, jobs=2, killed_at=time.time() - 7.0)
    with closing(sqlite3.connect(sqlite_file(config.database))) as file, file:
        file.execute("DELETE FROM bookings")
    none = recover(config, jobs=2, killed_at=time.time() - 7.0)

    assert 4.0 < done["first_s"] == done["last_s"] < 6.0
    assert partly["done"] == 1
    assert partly["last_s"] == 6.0
    assert none == {"done": 0.0, "first_s": 6.0, "last_s": 6.0}


def test_a_worker_is_killed_only_when_the_other_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "IDLE_SECONDS", 0.01)
    worker: Any = Worker(0.0, 0.009, 0.015, 0.016)

    recovery._wait_until_idle(worker)

    assert list(worker.looks) == [], "it waited for the look that shows no use of the CPU"


@pytest.mark.parametrize(
    ("case", "starts"),
    [
        (recovery.DEFAULTS, [("first", None), ("second", None)]),
        (recovery.RESTARTED, [("first", 10.0), ("second", 10.0), ("first", 10.0)]),
    ],
)
def test_a_supervisor_starts_the_killed_worker_again_in_one_case(
    case: str, starts: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make_run(tmp_path, monkeypatch)
    monkeypatch.setattr(run, "queued", lambda *_: "")
    monkeypatch.setattr(recovery, "ContenderProcess", Process)
    for step in ("_wait_for_starts", "_wait_until_idle"):
        monkeypatch.setattr(recovery, step, lambda *_: None)
    monkeypatch.setattr(recovery, "_recover", lambda *_: {})
    Process.started.clear()

    recovery._run_trial(run, case, 0, 0.0, BY_NAME[ONCEWARD_OWN])

    assert [
        (process.config.worker, process.config.lease_seconds) for process in Process.started
    ] == starts
    first, *others = (process.config.job_seconds for process in Process.started)
    assert first == recovery.HOLD_SECONDS
    assert set(others) == {recovery.JOB_SECONDS}


def test_an_event_that_a_contender_rejects_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contender = BY_NAME[ONCEWARD_OWN]
    server: Any = SimpleNamespace(log="")

    @contextmanager
    def running(*_: object) -> Iterator[Receiver]:
        yield Receiver(contender, ContenderConfig("sqlite:///x"), server)

    monkeypatch.setattr(fairness, "_running", running)
    monkeypatch.setattr(fairness, "send", lambda _: LoadReport(statuses={"202": 9, "503": 1}))
    run = make_run(tmp_path, monkeypatch)

    with pytest.raises(TrialFailed, match="not every request was accepted"):
        fairness._run_trial(run, contender, fairness.ALONE, Schedule(1), 0)


def test_a_worker_that_ends_is_not_measured_as_one_that_lets_events_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make_run(tmp_path, monkeypatch)
    monkeypatch.setattr(fairness, "ContenderProcess", EndingWorker)
    monkeypatch.setattr(fairness, "HEAD_START_SECONDS", 0.0)
    monkeypatch.setattr(fairness, "send", lambda _: LoadReport(statuses={"202": 1}))

    running = fairness._running(run, BY_NAME[ONCEWARD_OWN], "")
    with pytest.raises(TrialFailed, match="the worker exited"), running:
        pass


@pytest.mark.parametrize(
    ("name", "roles"),
    [(ONCEWARD_OWN, ["serve", "work"]), (IN_REQUEST, ["serve"]), ("loop-sqlite", ["serve"])],
)
def test_a_contender_that_runs_handlers_where_it_serves_has_no_worker_process(
    name: str, roles: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make_run(tmp_path, monkeypatch)
    monkeypatch.setattr(latency, "ContenderProcess", Process)
    monkeypatch.setattr(latency, "WARM_UP_REQUESTS", 10)
    monkeypatch.setattr(latency, "send", lambda _: LoadReport(statuses={"202": 1}))
    monkeypatch.setattr(latency, "_wait_for_commits", lambda *_: {})
    monkeypatch.setattr(latency, "check_work", lambda *_: None)
    Process.started.clear()

    with latency._running(run, BY_NAME[name]):
        assert [process.role for process in Process.started] == roles


def test_latency_alternates_all_contenders_but_dbos(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = make_run(tmp_path, monkeypatch)
    monkeypatch.setattr(run, "contenders", lambda benchmark: select(benchmark, POSTGRES))
    titles = [trial.label.partition(": ")[2] for trial in latency.plan(run, Schedule(rounds=2))]

    first, second = titles[: len(titles) // 2], titles[len(titles) // 2 :]
    assert first[0] == second[0] == BY_NAME[DBOS].title
    assert second[1:] == first[:0:-1]


def measure_latency(name: str, maximum: float, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what a trial of latency does, in order, and the cases of its samples."""
    steps: list[Any] = []

    @contextmanager
    def running(*_: object) -> Iterator[ContenderConfig]:
        yield ContenderConfig("")

    def measure(_: Any, rate: float, seconds: float) -> dict[str, float]:
        steps.append((rate, seconds))
        return {"rate": rate}

    def find_maximum(_: Any) -> float:
        steps.append("burst")
        return maximum

    monkeypatch.setattr(latency, "_running", running)
    monkeypatch.setattr(latency._Probe, "measure", measure)
    monkeypatch.setattr(latency._Probe, "find_maximum", find_maximum)
    samples = latency._run_trial(
        run=None,  # type: ignore[arg-type]
        contender=BY_NAME[name],
        schedule=Schedule(1, 10.5),
        number=0,
        maxima={},
    )
    return [*steps, [sample.case for sample in samples]]


def test_the_common_load_is_measured_before_the_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = (latency.STEADY_RATE, 10.5)
    fast = measure_latency(PGQUEUER, 1_000.0, monkeypatch)
    slow = measure_latency(PGQUEUER, 120.0, monkeypatch)
    dbos = measure_latency(DBOS, 80.0, monkeypatch)

    half = (500.0, latency.SHORT_SECONDS)
    assert fast == [steady, "burst", half, [latency.STEADY, latency.HALF_OF_OWN]]
    assert slow[:2] == [steady, "burst"]
    assert slow[-1] == [latency.HALF_OF_OWN], "above its maximum, a queue only grows"
    assert dbos[0] == "burst"
    assert dbos[-1] == list(latency.SHARES_OF_DBOS)


@pytest.mark.parametrize(
    ("rate", "seconds"), [(1_000.0, 4.0), (200.0, 5.25), (50.0, 4.0), (98.0, 10.5)]
)
def test_a_rate_is_measured_until_p99_has_its_samples(rate: float, seconds: float) -> None:
    assert latency._seconds(rate, longest=10.5) == pytest.approx(seconds)


@pytest.mark.parametrize("samples", [999, 1_000])
def test_p99_needs_a_thousand_samples(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = latency._Probe(run=None, config=ContenderConfig(""))  # type: ignore[arg-type]
    times = [float(number) for number in range(samples)]
    monkeypatch.setattr(probe, "_send", lambda *_: (times, [at + 0.002 for at in times]))

    values = probe.measure(100.0, 10.0)

    found = Results("latency", "postgres", samples=[Sample(PGQUEUER, latency.STEADY, 0, values)])
    ((*_, p50, p99, longest),) = make_tables(found)[0].rows
    assert (p50, longest) == ("2.0", "2.0")
    assert p99 == ("2.0" if samples >= latency.P99_SAMPLES else EN_DASH)


@pytest.mark.parametrize("store", STORES)
def test_the_published_p99_of_the_common_load_has_enough_samples(store: str) -> None:
    schedule = PUBLISHED[store]["latency"]

    assert schedule.rounds >= 5
    assert schedule.seconds * latency.STEADY_RATE >= 1.05 * latency.P99_SAMPLES
