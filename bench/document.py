"""The generated blocks of docs/benchmarks.md, and its charts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from bench.losses import find_losses, loss_table
from bench.plot import draw, make_charts
from bench.processes import ROOT
from bench.ratios import PastRun, find_ratios, ratio_table
from bench.registry import select
from bench.results import Results
from bench.schedule import BENCHMARKS
from bench.tables import make_tables

PAGE = ROOT / "docs" / "benchmarks.md"
CHARTS = "benchmarks.svg"
BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(every: Sequence[Results], history: Sequence[PastRun], page: Path = PAGE) -> None:
    """Write the blocks of the page and the file of charts. Raises ValueError."""
    page.write_text(fill_blocks(page.read_text(), every, history))
    page.with_name(CHARTS).write_text(draw(make_charts(every)))


def fill_blocks(text: str, every: Sequence[Results], history: Sequence[PastRun]) -> str:
    """Return the page with every block filled.

    Raises ValueError if a block is unknown or a result has no block.
    """
    contents = dict(_contents(every, history))

    def fill(block: re.Match[str]) -> str:
        begin, name, end = block.groups()
        if name not in contents and name not in BENCHMARKS:
            raise ValueError(f"the block {name!r} is not a benchmark")
        content = contents.pop(name, f"Not measured yet: `python -m bench refresh {name}`.")
        return f"{begin}\n{content}\n\n{end}"

    filled = BLOCK.sub(fill, text)
    if contents:
        raise ValueError(f"the page has no block for {', '.join(contents)}")
    return filled


def _contents(every: Sequence[Results], history: Sequence[PastRun]) -> Iterator[tuple[str, str]]:
    yield "ratios", ratio_table(find_ratios(every), history).to_markdown()
    yield "losses", loss_table(find_losses(every)).to_markdown()
    yield "environment", _environment(every)
    for benchmark in dict.fromkeys(results.benchmark for results in every):
        parts = [
            part
            for results in every
            if results.benchmark == benchmark
            for part in _benchmark(results)
        ]
        yield benchmark, "\n\n".join(parts)


def _benchmark(results: Results) -> Iterator[str]:
    for table in make_tables(results):
        yield table.to_markdown()
    unmeasured = [
        contender.title
        for contender in select(results.benchmark, results.store)
        if contender.name not in results.contenders
    ]
    if unmeasured:
        yield f"Not measured: {'; '.join(unmeasured)}."
    environment = results.environment
    yield f"`{environment['command']}`, {environment['date'][:10]}{_commit(environment)}."


def _commit(environment: Mapping[str, Any]) -> str:
    """Return the measured commit, or nothing if it was not stored."""
    if "commit" not in environment:
        return ""
    return f", commit {environment['commit']}{' with changes' * environment['has_changes']}"


def _environment(every: Sequence[Results]) -> str:
    environment = max((results.environment for results in every), key=itemgetter("date"))
    stores = dict.fromkeys(
        f"{results.environment['store']} {results.environment['server_version']}"
        for results in every
    )
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    return (
        f"{environment['cores']} cores of an {environment['processor']}, "
        f"{environment['memory_gb']} GB, {environment['system']}, Python {environment['python']}, "
        f"{', '.join(stores)}. {packages}."
    )
