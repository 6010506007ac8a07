"""The tables, ratios and losses of the benchmarks, from results that no run has to produce."""

import re
from pathlib import Path

import pytest

from bench import document, results
from bench.deliveries import (
    UNIQUE,
)
from bench.losses import find_losses
from bench.plot import draw, make_charts
from bench.ratios import append_history, find_ratios, load_history, ratio_table
from bench.registry import (
    BY_NAME,
    ON_CONFLICT,
    ON_CONFLICT_ASYNCPG,
    ONCEWARD,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    STORES,
)
from bench.results import Results, Sample
from bench.schedule import BENCHMARKS
from bench.suite import latency, receive
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


def test_a_target_is_met_by_the_ratio_of_medians() -> None:
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

    title, last, lowest_to_highest, runs, target, is_met = rows[0]
    assert title == "ingest, to ON CONFLICT on psycopg"
    assert last.startswith("2.23")
    assert re.findall(r"[\d.]+", lowest_to_highest) == ["2.23", "4.00"]
    assert (runs, target[:3], is_met) == ("2", "≥ 4", "NO")


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
