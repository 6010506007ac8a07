"""The result on docs/proof.md, written from the saved verdict of the long form."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "proof.md"
VERDICT = Path(__file__).parent / "results" / "long.json"
BEGIN, END = "<!-- result: begin -->", "<!-- result: end -->"
STORES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}

LATER_FAULTS = ("frozen hosts", "failovers", "cancellations", "clock steps")
"""Faults that a verdict may lack: some need programs that are not installed everywhere."""

Json = Mapping[str, Any]


def page() -> str:
    """Return the page with the result of the saved verdict."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{result(json.loads(VERDICT.read_text()))}\n\n{end}{after}"


def result(verdict: Json) -> str:
    """Return the verdict as a sentence and two tables."""
    minutes, seconds = divmod(round(verdict["seconds"]), 60)
    command = f"make prove LONG=1 SEED={verdict['seed']}"
    lines = [
        f"`{command}`: **{verdict['verdict']}** after {minutes} minutes {seconds} seconds.",
        "",
        "| | PostgreSQL | SQLite | failures | bound on the failure rate, at 95% |",
        "| --- | ---: | ---: | ---: | --- |",
        *(_bound_row(title, counts) for title, counts in _trials(verdict)),
        "",
        "| during the run | PostgreSQL | SQLite |",
        "| --- | ---: | ---: |",
        *(_row([title, *map(_number, values)]) for title, values in _activity(verdict)),
        *_delay_table(verdict),
    ]
    return "\n".join(lines)


def _delay_table(verdict: Json) -> Iterator[str]:
    """Yield the longest times until the service worked again, if the verdict has any."""
    delays = [
        (title, what, delay)
        for store, title in STORES.items()
        for what, delay in verdict["stores"][store].get("delays", {}).items()
    ]
    if delays:
        yield ""
        yield "| the longest time until it worked again | store | seconds | limit |"
        yield "| --- | --- | ---: | ---: |"
    for title, what, delay in delays:
        yield _row([what, title, f"{delay['seconds']:.2f}", f"{delay['limit_seconds']:g}"])


def _trials(verdict: Json) -> Iterator[tuple[str, list[int]]]:
    stores = [verdict["stores"][name] for name in STORES]
    yield "events", [store["totals"]["events"] for store in stores]
    yield (
        "kills, including those at failpoints",
        [store["faults"]["kills"] + sum(store["failpoint_kills"].values()) for store in stores],
    )
    for title, fault in (
        ("PostgreSQL crashes", "PostgreSQL crashes"),
        ("power cuts", "power cuts"),
        ("zombies", "zombies woken"),
    ):
        yield title, [store["faults"].get(fault, 0) for store in stores]
    for fault in LATER_FAULTS:
        counts = [store["faults"].get(fault, 0) for store in stores]
        if any(counts):
            yield fault, counts


def _bound_row(title: str, counts: list[int]) -> str:
    """Return a row with the rule of three. Only green verdicts are saved: no trial failed."""
    trials = sum(counts)
    bound = f"below {_decimal(3 / trials)}" if trials else "not run"
    return _row([title, *map(_number, counts), "0", bound])


def _decimal(value: float) -> str:
    """Format with two significant digits, without an exponent."""
    return f"{float(f'{value:.2g}'):.7f}".rstrip("0")


def _activity(verdict: Json) -> Iterator[tuple[str, list[float]]]:
    stores = [verdict["stores"][name] for name in STORES]
    yield "kills per minute", [store["kills_per_minute"] for store in stores]
    for title, total in (
        ("requests", "requests"),
        ("requests with an unknown outcome", "unknown"),
        ("duplicates", "duplicates"),
        ("conflicts", "conflicts"),
        ("overlapping requests with the same id", "overlapping"),
        ("failed attempts", "failed_attempts"),
        ("requeues", "requeues"),
    ):
        yield title, [store["totals"][total] for store in stores]
    for title, fault in (
        ("kills of all processes at once", "kills of all processes at once"),
        ("lost COMMIT responses", "COMMIT responses lost"),
        ("events acknowledged before a power cut", "acknowledged before a power cut"),
    ):
        yield title, [store["faults"].get(fault, 0) for store in stores]


def _number(value: float) -> str:
    """Format a count; a fault that a store does not have is left empty."""
    return f"{value:,}" if value else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
