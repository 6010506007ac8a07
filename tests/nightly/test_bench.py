"""The benchmarks' own parts, in a short run without any alternative installed."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from bench import results
from bench import run as run_module
from bench.contenders.interface import ContenderConfig
from bench.databases import PostgresDatabases
from bench.deliveries import (
    BODY_BYTES,
    HALF_DUPLICATES,
    LOADS,
    UNIQUE,
    is_authentic,
    make_body,
    prepare,
    random_ids,
    sign,
)
from bench.load_generator import LoadPlan, LoadReport
from bench.plot import draw, make_charts
from bench.processes import (
    TICKS_PER_SECOND,
    TrialFailed,
    free_port,
    group_cpu_seconds,
    received_ids,
    send,
    server_cpu_seconds,
)
from bench.progress import run_trials
from bench.registry import (
    BARE_PROTOCOL,
    BATCH,
    BATCH_SIZE,
    BY_NAME,
    CONTENDERS,
    EMPTY_ENDPOINT,
    ONCEWARD,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    ONCEWARD_WITH_WORKER,
)
from bench.results import Results, Sample
from bench.run import Options, Run, Schedule, Trial, alternate
from bench.schedule import BENCHMARKS, PUBLISHED
from bench.suite import fairness, ingest, process, receive, recovery, retention
from bench.tables import make_tables
from onceward.settings import Settings
from support.memory import memory_folder

MODULES = Path(results.__file__).parent / "contenders"
SHORT = Schedule(rounds=1, seconds=0.2)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Yield a run with little load, and without waits for the disk: no figure is tested."""
    contenders = (ONCEWARD, EMPTY_ENDPOINT, BARE_PROTOCOL)
    options = Options(contenders=contenders, connections=16, max_jobs=2_000)
    with pytest.MonkeyPatch.context() as patch, PostgresDatabases(memory_folder()) as databases:
        patch.setattr(os, "sync", lambda: None)
        patch.setattr(run_module, "WARM_UP_SECONDS", 0.1)
        patch.setattr(run_module, "WARM_UP_REQUESTS", 2_000)
        patch.setattr(ingest, "REQUESTS_PER_SECOND", 10_000)
        patch.setattr(ingest, "REQUESTS_PER_BURST", 15_000)
        run = Run(options, databases)
        yield run
        run.close()


def measure(benchmark: str, trials: Sequence[Trial]) -> Results:
    """Run some trials, none of which may fail."""
    found = Results(benchmark, "postgres")
    for outcome in run_trials(trials, Console(quiet=True)):
        assert outcome.failure is None
        found.samples += outcome.samples
    return found


def test_a_short_run_produces_results_tables_and_charts(run: Run, tmp_path: Path) -> None:
    every = [Results("ingest", "postgres"), Results("process", "postgres")]
    plans = ingest.plan(run, SHORT), process.plan(run, SHORT)[:2]
    for found, trials in zip(every, plans, strict=True):
        for outcome in run_trials(trials, Console(quiet=True)):
            assert outcome.failure is None
            found.samples += outcome.samples

    results.save(tmp_path, every)
    loaded = results.load(tmp_path, ["ingest", "process"], ["postgres"])

    assert loaded == every
    assert loaded[0].contenders == [
        *(ONCEWARD, ONCEWARD_WITH_WORKER),
        *(EMPTY_ENDPOINT, BARE_PROTOCOL),
    ]
    assert loaded[0].cases == list(LOADS)
    assert loaded[1].contenders == [ONCEWARD_OWN, ONCEWARD_SHARED]
    for found in loaded:
        for name in found.contenders:
            for case in found.cases:
                assert (found.median(name, case, "rate") or 0) > 0
    titles = [table.title for found in loaded for table in make_tables(found)]
    assert titles == ["Ingest on PostgreSQL", "Process on PostgreSQL"]
    assert ET.fromstring(draw(make_charts(loaded))).tag.endswith("svg")  # noqa: S314 - our own


def test_receiving_is_measured_in_alternating_bursts_of_new_requests(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_requests: list[tuple[int, bytes]] = []

    def send_and_remember(plan: LoadPlan) -> LoadReport:
        with Path(plan.file).open("rb") as file:
            file.seek(plan.skip * plan.request_bytes)
            first_requests.append((plan.port, file.read(plan.request_bytes)))
        return send(plan)

    monkeypatch.setattr(receive, "MAX_BURST_SECONDS", 0.2)
    monkeypatch.setattr(receive, "send", send_and_remember)
    found = measure("receive", receive.plan(run, Schedule(1, seconds=0.4)))

    order = [ONCEWARD, EMPTY_ENDPOINT, BARE_PROTOCOL]
    assert [(sample.contender, sample.case) for sample in found.samples] == [
        (name, case) for name in order + order[::-1] for case in receive.CASES
    ]
    assert len(set(first_requests)) == len(found.samples), "a contender got a request again"
    for case in receive.CASES:
        onceward, empty, bare = (found.median(name, case, "cpu_us") or 0 for name in order)
        assert 0 < bare < min(onceward, empty)
        rate = found.median(BARE_PROTOCOL, case, "rate") or 0
        assert rate > (found.median(ONCEWARD, case, "rate") or 0)


def test_the_jobs_of_a_killed_worker_are_timed_until_another_has_done_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "JOBS", 2)
    monkeypatch.setattr(recovery, "IDLE_SECONDS", 0.2)
    found = measure("recovery", recovery.plan(run, SHORT)[:1])

    (sample,) = found.samples
    assert sample.case == recovery.DEFAULTS
    assert sample.values["done"] == 2
    assert 0 < sample.values["first_s"] < sample.values["last_s"] < recovery.LIMIT_SECONDS
    (table,) = make_tables(found)
    assert [row[1] for row in table.rows] == ["Onceward, own transactions"]


def test_a_quick_handler_is_timed_beside_another_with_a_backlog(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "HEAD_START_SECONDS", 0.0)  # the warm-up takes a second
    trials = [trial for trial in fairness.plan(run, SHORT) if "quick jobs" in trial.label]
    found = measure("fairness", trials[:1])

    (sample,) = found.samples
    assert sample.contender == ONCEWARD_OWN
    assert 0 < sample.values["p50_ms"] <= sample.values["p99_ms"]
    assert sample.values["p99_ms"] < fairness.LIMIT_SECONDS * 1_000
    (table,) = make_tables(found)
    assert len(table.rows) == 1


BURN_IN_A_CHILD = """
import os, sys, time
child = os.fork()
if not child:
    while time.process_time() < 0.3:
        pass
    print("burnt", flush=True)
    os.read(0, 1)
    os._exit(0)
os.waitpid(child, 0)
print("waited for", flush=True)
os.read(0, 1)
"""


def test_the_cpu_time_of_a_process_includes_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BURN_IN_A_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"burnt\n"
        living = group_cpu_seconds(process.pid)
        process.stdin.write(b".")
        assert process.stdout.readline() == b"waited for\n"
        ended = group_cpu_seconds(process.pid)
        server = server_cpu_seconds([process.pid])
        process.send_signal(signal.SIGKILL)

    two_ticks = 2 / TICKS_PER_SECOND  # user and system time are rounded down
    assert 0.3 - two_ticks <= living < 2.0
    assert 0.3 - two_ticks <= ended < 2.0
    assert 0.3 - two_ticks <= server < 2.0
    assert server_cpu_seconds([os.getpid(), process.pid]) > 0, "an ended child has no time left"


def test_the_published_bursts_of_receiving_are_long_and_few(run: Run) -> None:
    schedule = PUBLISHED["postgres"]["receive"]
    bursts = schedule.bursts(receive.MAX_BURST_SECONDS)

    assert bursts.seconds * TICKS_PER_SECOND >= 200
    assert bursts.count >= 4
    (trial,) = receive.plan(run, schedule)
    assert trial.seconds < 180.0  # for three contenders of four
    sqlite = Run(replace(run.options, store="sqlite"), run.databases, folder=run.folder)
    assert receive.plan(sqlite, schedule) == []


def test_the_ledger_holds_what_the_load_generator_counted(run: Run, tmp_path: Path) -> None:
    contender = BY_NAME[ONCEWARD]
    journal = tmp_path / "journal"
    deliveries = run.deliveries(4_000)
    with run.deployed(contender) as config:
        with run.serving(contender, config):
            plan = run.load_plan(
                config, deliveries, 0.2, load=HALF_DUPLICATES, skip=100, journal=str(journal)
            )
            report = send(plan)
        numbers = json.loads(journal.read_text())["numbers"]
        stored = received_ids(contender.module, config) & set(deliveries.ids)

    assert report.statuses == {"202": report.acknowledged}
    assert report.acknowledged == len(numbers)
    assert stored == {deliveries.ids[number] for number in numbers}
    assert len(stored) < report.acknowledged
    assert min(numbers) == 100


@contextmanager
def responding(*responses: bytes, first_after: float = 0.0) -> Iterator[int]:
    """Serve one connection with these responses, each in two pieces, then close the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            for number, response in enumerate(responses):
                connection.recv(65_536)
                if not number:
                    time.sleep(first_after)  # the slow server of the test
                for piece in (response[:20], response[20:]):
                    connection.sendall(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    thread.join()
    listener.close()


def test_the_load_generator_counts_only_complete_2xx_responses(tmp_path: Path) -> None:
    deliveries = prepare(tmp_path / "requests", random_ids(4, seed=1))
    accepted = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}"
    rejected = b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n"
    with responding(accepted, rejected, accepted) as port:
        plan = LoadPlan(port, str(deliveries.file), deliveries.request_bytes, connections=1)
        report = send(plan)

    assert report.statuses == {"202": 2, "503": 1}
    assert report.acknowledged == 2
    assert report.rejected == 1
    assert report.is_cut_off


def test_a_wait_for_a_free_connection_counts_as_latency(tmp_path: Path) -> None:
    deliveries = prepare(tmp_path / "requests", random_ids(20, seed=1))
    accepted = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}"
    with responding(*[accepted] * 20, first_after=0.4) as port:
        plan = LoadPlan(port, str(deliveries.file), deliveries.request_bytes, connections=1,
                        rate=50.0, seconds=0.4)  # fmt: skip
        report = send(plan)

    assert report.acknowledged == 20, "requests that fell due meanwhile are sent"
    assert report.max_ms >= 400
    assert 150 < report.p50_ms < 400, "they fell due one after the other"


def test_every_body_has_the_same_length_and_verifies() -> None:
    number = random.Random(1).randrange(1_000_000)  # noqa: S311 - repeatable
    body = make_body(random_ids(1, seed=2)[0], number)

    assert len(body) == BODY_BYTES
    assert is_authentic(body, sign(body))
    assert not is_authentic(body, sign(body + b" "))
    assert not is_authentic(body, None)


def test_half_duplicates_sends_every_event_twice() -> None:
    sent = list(LOADS[HALF_DUPLICATES](1_000))

    assert Counter(sent) == dict.fromkeys(range(1_000), 2)
    start = Counter(sent[:400])
    assert max(start.values()) == 2
    assert 0.4 < 1 - len(start) / 400 < 0.5, "a slow contender gets duplicates too"


def test_rounds_alternate_the_order_of_the_contenders() -> None:
    assert list(alternate("ab", 2)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TrialFailed("the worker failed"), "the worker failed"),
        (TrialFailed("it failed:\nTraceback\nTypeError"), "it failed: TypeError"),
        (KeyError("evt_1"), "KeyError: 'evt_1'"),
    ],
)
def test_a_failed_trial_does_not_stop_the_others(error: Exception, reason: str) -> None:
    def fail() -> list[Sample]:
        raise error

    sample = Sample(ONCEWARD, UNIQUE, 0, {"rate": 1.0})
    outcomes = run_trials(
        [Trial("first", 1.0, fail), Trial("second", 1.0, lambda: [sample])], Console(quiet=True)
    )

    assert [outcome.failure for outcome in outcomes] == [reason, None]
    assert outcomes[1].samples == [sample]


def test_every_contender_has_a_module_and_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(CONTENDERS)
    modules = {file.stem for file in MODULES.glob("*.py")}
    assert {contender.module for contender in CONTENDERS} <= modules


def test_a_batch_is_as_large_as_a_shared_transaction() -> None:
    assert Settings().max_jobs_per_transaction == BATCH_SIZE
    loops = [each for each in CONTENDERS if each.commit == BATCH and not each.is_onceward]
    assert {loop.batch_size for loop in loops} == {BATCH_SIZE}


def test_every_benchmark_has_a_published_schedule() -> None:
    assert set(PUBLISHED["postgres"]) == set(BENCHMARKS)
    assert set(PUBLISHED["sqlite"]) < set(BENCHMARKS)


def test_a_config_survives_the_command_line() -> None:
    config = ContenderConfig("postgresql://x", port=free_port(), lease_seconds=1.5)

    assert ContenderConfig.from_json(config.to_json()) == config


def test_receiving_is_timed_beside_each_kind_of_maintenance(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "WARM_UP_SECONDS", 0.2)
    small = replace(run.options, retention_events=72_000)
    trials = retention.plan(replace(run, options=small), Schedule(rounds=1, seconds=1.2))
    found = measure("retention", [trial for trial in trials if "sizes" not in trial.label])

    titles = [title for case in retention.CASES for title in (case.without, case.title)]
    assert found.cases == titles
    purging = [sample.case for sample in found.samples if "purged_rate" in sample.values]
    assert purging == [retention.EVENTS.title, retention.JOBS.title]
    assert all(0 < s.values["p50_ms"] <= s.values["p99_ms"] for s in found.samples)
    (table,) = make_tables(found)
    assert [row[0] for row in table.rows] == [case.title for case in retention.CASES]


def turn(case: retention.Case, *, is_during: bool) -> retention._Turn:
    return retention._Turn(case, 0, is_during=is_during)


@pytest.mark.parametrize(
    ("turn", "deleted", "dropped", "problem"),
    [
        (turn(retention.EVENTS, is_during=True), 500, (), None),
        (turn(retention.JOBS, is_during=True), 0, (), "nothing was purged"),
        (turn(retention.EVENTS, is_during=False), 0, (), None),
        (turn(retention.JOBS, is_during=False), 3, (), "3 rows were purged"),
        (turn(retention.DROP, is_during=True), 0, (0,), None),
        (turn(retention.DROP, is_during=True), 0, (1,), "was not dropped"),
        (turn(retention.DROP, is_during=False), 0, (1,), "0 rows were purged"),
    ],
)
def test_a_turn_has_a_purge_if_and_only_if_it_is_set(
    run: Run, turn: retention._Turn, deleted: int, dropped: Sequence[int], problem: str | None
) -> None:
    turns = retention._Turns(run, SHORT)
    names = [f"payloads_{week.label}" for week in turns._history.weeks]
    before = retention._Reading(0.0, 7, dict.fromkeys(names, 9))
    smaller = {names[number]: 1 for number in dropped}
    after = retention._Reading(1.0, 7 + deleted, dict.fromkeys(names, 9) | smaller)

    found = turns._problem(turn, before, after)

    assert (found is None) == (problem is None)
    assert (problem or "") in (found or "")


def test_a_ledger_whose_rows_were_replaced_is_compared_with_a_fresh_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SIZE_ROUNDS", 1)
    monkeypatch.setattr(retention, "STEPS", 2)
    small = replace(run.options, retention_live_events=8_000)
    trials = retention.plan(replace(run, options=small), SHORT)
    found = measure("retention", [trial for trial in trials if "sizes" in trial.label])

    assert found.cases == [retention.size_case(relation) for relation in retention.RELATIONS]
    sizes = {sample.case: sample.values for sample in found.samples}
    events, payloads = (sizes[retention.size_case(name)] for name in ("events", "payloads"))
    assert 1 < events["mb"] / events["fresh_mb"] < 2, "a half was replaced at a time"
    assert payloads["mb"] == payloads["fresh_mb"] > 0, "weeks of payloads are dropped whole"
    assert make_tables(found)[-1].rows[0][0] == "`events`"


def test_a_ledger_that_was_not_purged_fails_the_trial(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "STEPS", 1)
    monkeypatch.setattr(retention, "run_role", lambda *_: None)
    small = replace(run.options, retention_live_events=2_000)
    sizes = retention._Sizes(replace(run, options=small))

    with pytest.raises(TrialFailed, match=r"the purged ledger has \{'events': 4000"):
        sizes._run_round(0)
