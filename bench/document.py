"""Writes the measured tables into docs/benchmarks.md, between two marks."""

from collections.abc import Sequence
from pathlib import Path

from bench.plot import charts, draw
from bench.process import ROOT
from bench.results import Results
from bench.tables import grids
from bench.targets import grid, targets

PAGE = ROOT / "docs" / "benchmarks.md"
DRAWING = "benchmarks.svg"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def measured(every: Sequence[Results]) -> str:
    """What was measured, as Markdown."""
    postgres = {results.measure: results for results in every if results.store == "postgres"}
    tables = [grid(targets(postgres)), *grids(every)]
    parts = [_origin(every), f"![Rates as bars]({DRAWING})"]
    return "\n\n".join([*parts, *(table.to_markdown() for table in tables)])


def _origin(every: Sequence[Results]) -> str:
    facts = every[0].facts
    commands = dict.fromkeys(f"`{results.facts['command']}`" for results in every)
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"Measured {facts['date'][:10]} on {facts['cores']} cores ({facts['processor']}), "
        f"{facts['memory_gb']} GB, {facts['system']}, Python {facts['python']}, "
        f"{facts['store']} {facts['server_version']}, by {', '.join(commands)}. {packages}."
    )


def write(every: Sequence[Results], page: Path = PAGE) -> None:
    """Put what was measured into the page, and the drawing beside it."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page.name} has no place for the results: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{measured(every)}\n\n{END}{after}")
    page.with_name(DRAWING).write_text(draw(charts(every)))
