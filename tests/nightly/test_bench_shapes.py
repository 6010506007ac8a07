"""The shapes of handlers are measured in a short run, and a handler in the request beside them."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from rich.console import Console

from bench import shapes as shape_names
from bench.checks import check_work
from bench.contenders import neighbours_loop
from bench.databases import PostgresDatabases
from bench.losses import find_losses
from bench.neighbours import FAILING, MAX_ATTEMPTS
from bench.processes import TrialFailed
from bench.progress import run_trials
from bench.ratios import SHAPE_TARGETS, find_ratios
from bench.registry import (
    BY_NAME,
    IN_REQUEST,
    NEIGHBOURS_LOOP,
    ONCEWARD_OWN,
    POSTGRES,
    SHAPES_LOOP,
    SHAPES_LOOP_ASYNCPG,
    select,
)
from bench.results import Results, Sample
from bench.run import Options, Run, Schedule
from bench.schedule import PUBLISHED
from bench.shapes import EFFECTS, OWN, SYNC, WAITING, effect_key
from bench.suite import latency, process, shapes
from bench.suite.process import _Reading, measure_work
from bench.tables import make_tables
from support.memory import memory_folder

SHORT = Schedule(rounds=1, seconds=0.3)
KEYS = {
    ONCEWARD_OWN: "SELECT idempotency_key FROM onceward.effects",
    SHAPES_LOOP: "SELECT key FROM effects",
}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Yield a run with few jobs, and without waits for the disk: no figure is tested."""
    names = (ONCEWARD_OWN, SHAPES_LOOP, IN_REQUEST)
    with pytest.MonkeyPatch.context() as patch, PostgresDatabases(memory_folder()) as databases:
        patch.setattr(os, "sync", lambda: None)
        patch.setattr(process, "WARM_UP_SECONDS", 0.1)
        run = Run(Options(contenders=names, max_jobs=5_000), databases)
        yield run
        run.close()


def shape_results(**values: float) -> Results:
    """Return results in which the loop does 1,000 jobs a second, for 100 µs of CPU on each side."""
    found = Results("shapes", "postgres")
    loop = {"rate": 1_000.0, "worker_us": 100.0, "postgres_us": 100.0}
    for shape in shapes.CASES:
        found.samples.append(Sample(ONCEWARD_OWN, shape, 0, loop | values))
        found.samples.append(Sample(SHAPES_LOOP, shape, 0, loop))
    return found


def test_both_sides_run_the_handler_of_each_shape(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: dict[tuple[str, str], set[str]] = {}
    booked: dict[tuple[str, str], set[str]] = {}
    settings: dict[str, list[tuple[int, float]]] = {}

    def measure_and_read(worker: Any, config: Any, **more: Any) -> dict[str, float]:
        values = measure_work(worker, config, **more)
        worker.kill()
        with psycopg.connect(config.database) as connection:
            tables = connection.execute("SELECT to_regclass('onceward.effects')").fetchone()
            name = ONCEWARD_OWN if tables and tables[0] else SHAPES_LOOP
            keys = connection.execute(KEYS[name]).fetchall()
            rows = connection.execute("SELECT event_id FROM bookings").fetchall()
        marked[name, config.shape] = {key for (key,) in keys}
        booked[name, config.shape] = {effect_key(event_id) for (event_id,) in rows}
        settings.setdefault(config.shape, []).append((config.concurrency, config.job_seconds))
        return values

    monkeypatch.setattr(shapes, "measure_work", measure_and_read)
    outcomes = run_trials(shapes.plan(run, SHORT), Console(quiet=True))

    assert [outcome.failure for outcome in outcomes] == [None] * len(outcomes)
    samples = [sample for outcome in outcomes for sample in outcome.samples]
    assert {(sample.contender, sample.case) for sample in samples} == {
        (name, shape) for name in KEYS for shape in shapes.CASES
    }
    assert all(sample.values["rate"] > 0 for sample in samples)
    assert all(sample.values["postgres_us"] > 0 for sample in samples)
    # A short trial may take no clock tick, but not all of them.
    assert {s.contender for s in samples if s.values["worker_us"] > 0} == set(KEYS)
    for key, keys in marked.items():
        assert keys == (booked[key] if key[1] == EFFECTS else set())
    eight, many = [(8, 0.0)] * 2, [(64, shapes.WAIT_SECONDS)] * 2
    assert settings == {OWN: eight, EFFECTS: eight, SYNC: eight, WAITING: many}


def test_an_effect_without_its_key_fails_the_trial(run: Run) -> None:
    contender = BY_NAME[SHAPES_LOOP]
    with run.deployed(contender, shape=EFFECTS) as config:
        check_work(contender, config)
        with psycopg.connect(config.database, autocommit=True) as connection:
            connection.execute("INSERT INTO effects (key) VALUES (%s)", [effect_key("evt_1")])
        with pytest.raises(TrialFailed, match="1 keys of effects or bookings"):
            check_work(contender, config)


def test_a_loop_takes_the_mark_from_an_event_that_has_attempts_left(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    open_connection = psycopg.AsyncConnection.connect

    async def connect(*arguments: Any, **more: Any) -> Any:
        opened.append(await open_connection(*arguments, **more))
        return opened[-1]

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect)
    contender = BY_NAME[NEIGHBOURS_LOOP]
    with run.deployed(contender, neighbour=FAILING) as config:
        program = neighbours_loop.Program(config)
        program.enqueue(1)
        read = "SELECT attempts, done_at IS NOT NULL FROM events"

        async def run_events() -> list[tuple[int, list[tuple[Any, ...]]]]:
            run_one = await program._connect()
            with psycopg.connect(config.database, autocommit=True) as connection:
                steps = [
                    (await run_one(1), connection.execute(read).fetchall())
                    for _ in range(MAX_ATTEMPTS + 1)
                ]
            await opened[0].close()
            return steps

        steps = asyncio.run(run_events())

    assert steps == [
        *((1, [(number, number == MAX_ATTEMPTS)]) for number in range(1, MAX_ATTEMPTS + 1)),
        (0, [(MAX_ATTEMPTS, True)]),
    ]


def test_a_handler_in_the_request_is_timed_until_its_commit(run: Run) -> None:
    contender = BY_NAME[IN_REQUEST]
    with latency._running(run, contender) as config:
        probe = latency._Probe(run, config)
        values = probe.measure(latency.STEADY_RATE, 0.2)

    assert 0 < values["p50_ms"] <= values["max_ms"]
    assert "p99_ms" not in values, "20 samples are too few"


def test_the_contenders_alternate_on_postgresql_only(run: Run) -> None:
    trials = shapes.plan(run, Schedule(rounds=2))
    sqlite = Run(Options(store="sqlite"), run.databases, folder=run.folder)

    first_shape = [trial.label.partition(": ")[2] for trial in trials[:4]]
    assert first_shape == first_shape[::-1]
    assert set(first_shape) == {BY_NAME[ONCEWARD_OWN].title, BY_NAME[SHAPES_LOOP].title}
    assert len(trials) == 2 * 2 * len(shapes.CASES)
    assert shapes.plan(sqlite, SHORT) == []


def test_the_loop_on_asyncpg_has_every_shape_but_the_sync_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "contenders", lambda benchmark: select(benchmark, POSTGRES))
    trials = shapes.plan(run, Schedule(rounds=1))

    on_asyncpg = [t.label for t in trials if t.label.endswith(BY_NAME[SHAPES_LOOP_ASYNCPG].title)]
    assert [label.split(", ")[1] for label in on_asyncpg] == [OWN, EFFECTS, WAITING]


def test_the_published_rounds_are_many_and_take_few_minutes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "contenders", lambda benchmark: select(benchmark, POSTGRES))
    schedule = PUBLISHED[POSTGRES]["shapes"]

    assert schedule.rounds >= 7
    assert sum(trial.seconds for trial in shapes.plan(run, schedule)) <= 360.0


def test_every_shape_has_a_title_and_a_target() -> None:
    assert list(shapes.CASES) == list(shape_names.TITLES) == list(SHAPE_TARGETS)


@pytest.mark.parametrize("name", [SHAPES_LOOP, SHAPES_LOOP_ASYNCPG])
def test_both_sides_have_as_many_jobs_queued(name: str) -> None:
    onceward, loop = BY_NAME[ONCEWARD_OWN], BY_NAME[name]

    assert (onceward.jobs, onceward.concurrency) == (loop.jobs, loop.concurrency)
    assert onceward.commit == loop.commit


def test_the_cpu_time_of_a_job_is_measured_while_the_clock_runs() -> None:
    begin = _Reading(at=10.0, jobs=100, cpu_seconds={"worker": 1.0})

    done = begin.until(_Reading(at=12.0, jobs=1_100, cpu_seconds={"worker": 1.5}))
    stalled = begin.until(_Reading(at=12.0, jobs=100, cpu_seconds={"worker": 1.5}))

    assert done == {"rate": 500.0, "worker_us": 500.0}
    assert stalled == {"rate": 0.0}


def test_the_table_and_the_targets_compare_with_the_loop() -> None:
    found = shape_results(rate=1_150.0, worker_us=80.0)

    (table,) = make_tables(found)
    is_met = {ratio.title: ratio.is_met for ratio in find_ratios([found]) if ratio.target}

    onceward, loop, *_ = table.rows
    assert onceward[2:] == ["1,150", "80.0", "100.0", "1.15", "0.80", "1.00"]
    assert loop[-3:] == ["1.00"] * 3
    assert len(table.rows) == 2 * len(shapes.CASES)
    assert is_met == {
        f"shapes, {shape}: to the loop on psycopg": shape == WAITING
        for shape in (OWN, EFFECTS, SYNC, WAITING)
    }


def test_a_loop_that_is_faster_or_cheaper_is_a_loss() -> None:
    assert find_losses([shape_results()]) == []

    losses = find_losses([shape_results(rate=900.0, worker_us=120.0, postgres_us=110.0)])

    assert {loss.contender for loss in losses} == {SHAPES_LOOP}
    assert [loss.onceward_value for loss in losses[:3]] == ["900/s", "120.0 µs", "110.0 µs"]
    assert len(losses) == 3 * len(shapes.CASES)


def test_latency_has_a_target_beside_a_handler_in_the_request() -> None:
    found = Results("latency", "postgres")
    for name, p50 in ((ONCEWARD_OWN, 3.0), (IN_REQUEST, 2.0)):
        values = {"rate": 100.0, "p50_ms": p50, "p99_ms": 9.0}
        found.samples.append(Sample(name, latency.STEADY, 0, values))

    (ratio,) = find_ratios([found])
    (loss,) = find_losses([found])

    assert ratio.title == "latency at 100/s, p50, to a handler in the request"
    assert (ratio.value, ratio.target, ratio.is_met) == (1.5, 2.0, True)
    assert (loss.contender, loss.onceward) == (IN_REQUEST, ONCEWARD_OWN)
