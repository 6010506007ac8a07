"""The tables, ratios and losses of the benchmarks, from results that no run has to produce."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench import document, results
from bench.deliveries import (
    UNIQUE,
)
from bench.environment import describe_commit
from bench.losses import find_losses
from bench.plot import draw, make_charts
from bench.ratios import (
    PastRun,
    append_history,
    compare_contenders,
    find_ratios,
    load_history,
    ratio_table,
)
from bench.registry import (
    BY_NAME,
    ON_CONFLICT,
    ON_CONFLICT_ASYNCPG,
    ONCEWARD,
    ONCEWARD_FLEET,
    ONCEWARD_FLEET_REDIS,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    STORES,
)
from bench.results import Results, Sample, Spread
from bench.schedule import BENCHMARKS
from bench.suite import latency, receive, retention, storm
from bench.tables import make_tables


def ingest_results() -> Results:
    environment = dict.fromkeys(
        ("cores", "processor", "memory_gb", "system", "python", "store", "server_version"), "x"
    )
    environment |= {"date": "2026-11-17T00:00:00+00:00", "command": "python -m bench refresh"}
    found = Results("ingest", "postgres", {**environment, "packages": {}})
    for number, rate in enumerate((900.0, 8_000.0, 8_200.0)):
        found.samples.append(Sample(ONCEWARD, UNIQUE, number, {"rate": rate}))
        found.samples.append(Sample(ON_CONFLICT, UNIQUE, number, {"rate": 2_000.0}))
    return found


def test_a_target_is_met_by_the_median_of_the_ratios() -> None:
    is_met = {ratio.title: ratio.is_met for ratio in find_ratios([ingest_results()])}

    assert is_met["ingest, to ON CONFLICT on psycopg"] is True
    assert is_met["ingest, to the empty endpoint"] is None


def receive_results(**cpu_us: float) -> Results:
    """Return results in which Onceward has half the rate of the empty endpoint."""
    found = Results("receive", "postgres")
    for case in receive.CASES:
        for name, cost in cpu_us.items():
            rate = 10_000.0 if name == ONCEWARD else 20_000.0
            values = {"cpu_us": cost, "rate": rate}
            found.samples.append(Sample(name.replace("_", "-"), case, 0, values))
    return found


def test_the_cost_of_receiving_has_targets() -> None:
    ratios = find_ratios([receive_results(onceward=24.0, empty_endpoint=30.0)])

    assert [(ratio.title, ratio.value, ratio.is_met) for ratio in ratios] == [
        ("receiving, CPU to the empty endpoint, 64 connections", 0.8, True),
        ("receiving, CPU to the empty endpoint, 256 connections", 0.8, False),
        ("receiving, rate to the empty endpoint, 64 connections", 0.5, True),
        ("receiving, rate to the empty endpoint, 256 connections", 0.5, False),
    ]


def test_the_cost_of_receiving_is_shown_beside_the_empty_endpoint() -> None:
    found = receive_results(bare_protocol=7.5, onceward=45.0, empty_endpoint=30.0)

    (table,) = make_tables(found)

    first, *_ = receive.CASES
    assert [row[2:] for row in table.rows if row[0] == first] == [
        ["45.0", "10,000", "1.50", "0.50"],
        ["30.0", "20,000", "1.00", "1.00"],
        ["7.5", "20,000", "0.25", "1.00"],
    ]
    assert len(table.rows) == 3 * len(receive.CASES)


def test_a_contender_that_receives_cheaper_is_a_loss_and_a_limit_is_not() -> None:
    found = receive_results(
        onceward=45.0, on_conflict_asyncpg=40.0, empty_endpoint=30.0, bare_protocol=7.5
    )

    losses = find_losses([found])

    assert {loss.contender for loss in losses} == {ON_CONFLICT_ASYNCPG}
    assert [loss.value for loss in losses] == ["20,000/s", "40.0 µs"] * len(receive.CASES)


def test_the_ratios_of_every_run_are_stored_and_shown_as_a_range(tmp_path: Path) -> None:
    slower = ingest_results()
    slower.samples = [sample for sample in slower.samples if sample.round < 2]
    for found in (ingest_results(), slower):
        append_history(tmp_path, [found])

    rows = ratio_table(find_ratios([slower]), load_history(tmp_path)).rows

    title, last, rounds, all_runs, runs, target, is_met = rows[0]
    assert title == "ingest, to ON CONFLICT on psycopg"
    assert last.startswith("2.23")
    assert re.findall(r"[\d.]+", rounds) == ["0.45", "4.00"]
    assert re.findall(r"[\d.]+", all_runs) == ["2.23", "4.00"]
    assert (runs, target[:3], is_met) == ("2", "≥ 4", "NO")


def test_the_range_of_a_single_run_is_its_figure(tmp_path: Path) -> None:
    found = Results("storm", "postgres", environment={"date": "2026-11-17"})
    for name, rate in ((ONCEWARD_FLEET, 10_000.0), (ONCEWARD_FLEET_REDIS, 10_551.0)):
        found.samples += [Sample(name, case, 0, {"rate": rate}) for case in storm.CASES]
    append_history(tmp_path, [found])

    (_, *figures), *_ = ratio_table(find_ratios([found]), load_history(tmp_path)).rows

    assert re.findall(r"[\d.]+", " ".join(figures[:3])) == ["1.06"] * 5


def test_the_figure_of_the_last_run_is_within_the_range_of_all_runs() -> None:
    title = "ingest, to ON CONFLICT on psycopg"
    stored = [PastRun("2026-11-17", {title: 5.0})]  # compared in another way than the results

    rows = ratio_table(find_ratios([ingest_results()]), stored).rows

    assert re.findall(r"[\d.]+", rows[0][3]) == ["4.00", "5.00"]


def test_two_sides_are_compared_in_the_rounds_and_bursts_that_both_have() -> None:
    found = Results("storm", "postgres")
    rates = {ONCEWARD_FLEET: [10.0, 20.0, 40.0], ONCEWARD_FLEET_REDIS: [30.0, 20.0]}
    for name, bursts in rates.items():
        found.samples += [Sample(name, "64", 0, {"rate": rate}) for rate in bursts]
        found.samples.append(Sample(name, "64", 1, {"rate": bursts[0]}))
    found.samples.append(Sample(ONCEWARD_FLEET_REDIS, "64", 2, {"rate": 99.0}))

    spread = compare_contenders(found, ONCEWARD_FLEET_REDIS, ONCEWARD_FLEET, "64")

    assert spread == Spread(3.0, 1.0, 3.0, 3)


def test_a_faster_contender_of_the_same_shape_is_a_loss() -> None:
    found = Results("process", "postgres")
    rates = {
        ONCEWARD_OWN: 1_000.0,
        ONCEWARD_SHARED: 4_000.0,
        "loop-psycopg": 2_000.0,
        "loop-psycopg-batch": 3_000.0,
        "loop-asyncpg-batch": 5_000.0,
    }
    found.samples = [Sample(name, "insert", 0, {"rate": rate}) for name, rate in rates.items()]

    losses = find_losses([found])

    assert [(loss.contender, loss.onceward) for loss in losses] == [
        ("loop-psycopg", ONCEWARD_OWN),
        ("loop-asyncpg-batch", ONCEWARD_SHARED),
    ]


def test_latency_is_measured_below_the_maximum_of_each_contender() -> None:
    maxima = {"dbos": 120.0, ONCEWARD_OWN: 1_000.0}

    slow = latency._rates(BY_NAME["dbos"], maxima)
    fast = latency._rates(BY_NAME[ONCEWARD_OWN], maxima)

    assert latency.STEADY not in slow
    assert max(slow.values()) == 60.0
    assert slow.items() <= fast.items()
    assert fast[latency.STEADY] == 100.0
    assert fast[latency.HALF_OF_OWN] == 500.0


def test_a_block_of_the_page_is_replaced_and_the_rest_stays() -> None:
    found = ingest_results()
    names = ("ratios", "losses", "environment", "ingest")
    blocks = [f"before\n<!-- measured: {name} -->\nold\n<!-- end -->\n" for name in names]

    text = document.fill_blocks("".join(blocks), [found], [])

    assert text.count("before\n") == len(names)
    assert "8,000 (900" in text
    assert "old" not in text
    with pytest.raises(ValueError, match="no block for ingest"):
        document.fill_blocks("".join(blocks[:3]), [found], [])


def test_the_measured_commit_is_below_each_table() -> None:
    found = ingest_results()

    def last_line() -> str:
        *_, line = document._benchmark(found)
        return line

    assert last_line().endswith("2026-11-17.")
    found.environment |= {"commit": "abc1234", "has_changes": False}
    assert last_line().endswith("2026-11-17, commit abc1234.")
    found.environment["has_changes"] = True
    assert last_line().endswith("2026-11-17, commit abc1234 with changes.")


def test_results_are_no_change_of_what_is_measured(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
        program = shutil.which("git") or pytest.skip("git is not installed")
        subprocess.run([program, *identity, "-C", tmp_path, *arguments], check=True)

    assert describe_commit(tmp_path) == {}
    for folder in ("src", "support", "bench/results"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src" / "a.py").touch()
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "Begin")
    (tmp_path / "bench" / "results" / "ingest.json").touch()
    assert describe_commit(tmp_path)["has_changes"] is False

    (tmp_path / "src" / "b.py").touch()
    found = describe_commit(tmp_path)
    assert found["has_changes"] is True
    assert re.fullmatch(r"[0-9a-f]{4,}", found["commit"])


def test_a_benchmark_without_results_is_shown_as_not_measured() -> None:
    found = ingest_results()

    def page(*names: str) -> str:
        blocks = ("ratios", "losses", "environment", "ingest", *names)
        return "".join(f"<!-- measured: {name} -->\n<!-- end -->\n" for name in blocks)

    assert "refresh receive" in document.fill_blocks(page("receive"), [found], [])
    with pytest.raises(ValueError, match="'recieve' is not a benchmark"):
        document.fill_blocks(page("recieve"), [found], [])


def test_the_page_shows_the_stored_results() -> None:
    stored = results.load(results.FOLDER, list(BENCHMARKS), STORES)
    history = load_history(results.FOLDER)
    page = document.PAGE.read_text()

    assert document.fill_blocks(page, stored, history) == page, "run python -m bench docs"
    assert draw(make_charts(stored)) == document.PAGE.with_name(document.CHARTS).read_text()


def test_every_stored_contender_is_known() -> None:
    stored = results.load(results.FOLDER, list(BENCHMARKS), STORES)

    names = {name for found in stored for name in found.contenders}
    assert names - {"bare"} <= BY_NAME.keys()


def purge_results(rows_per_second: float) -> Results:
    found = Results("retention", "postgres")
    for number, (without, during) in enumerate(((5.0, 6.0), (4.0, 12.0), (6.0, 9.0))):
        for title, p99 in ((retention.JOBS.without, without), (retention.JOBS.title, during)):
            values = {"p50_ms": 1.0, "p99_ms": p99, "max_ms": 20.0}
            if title == retention.JOBS.title:
                values["purged_rate"] = rows_per_second
            found.samples.append(Sample(ONCEWARD, title, number, values))
    return found


def test_the_p99_during_a_purge_is_compared_round_by_round() -> None:
    found = purge_results(rows_per_second=5_000.0)

    ratios = {ratio.title: (ratio.value, ratio.is_met) for ratio in find_ratios([found])}
    (table,) = make_tables(found)

    assert ratios["p99 of receiving, jobs purged, to none"] == (1.5, True)
    assert ratios["p99 of receiving, events purged, to none"] == (None, None)
    assert re.findall(r"[\d.]+", table.rows[0][5]) == ["1.50", "1.20", "3.00"]


def test_a_purge_that_hardly_went_on_meets_no_target_and_has_no_ratio() -> None:
    found = purge_results(rows_per_second=100.0)
    ratios = {ratio.title: ratio.is_met for ratio in find_ratios([found])}
    (table,) = make_tables(found)

    assert ratios["p99 of receiving, jobs purged, to none"] is None
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert not re.search(r"\d", cells["p99 ratio"] + cells["longest ratio"])
    assert cells["rows purged/s"] == "100"


def test_the_drop_of_a_week_shows_its_longest_wait() -> None:
    found = Results("retention", "postgres")
    for number, longest in enumerate((50.0, 180.0, 75.0)):
        values = {"p99_ms": 9.0, "max_ms": longest}
        found.samples.append(Sample(ONCEWARD, retention.DROP.title, number, values))

    rows = {row[0]: row[1:3] for row in ratio_table(find_ratios([found]), []).rows}

    last, rounds = rows["longest wait of receiving, a week of payloads dropped"]
    assert last == "75.00 ms"
    assert re.findall(r"[\d.]+", rounds) == ["50.00", "180.00"]
