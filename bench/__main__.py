"""Measure Onceward and its alternatives side by side, on one machine, in one run."""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bench import document, results, targets
from bench.database import open_databases
from bench.facts import machine
from bench.field import FIELD, STORES, chosen
from bench.measures import crash, growth, ingest, latency, lone, process, verify
from bench.plot import charts, draw
from bench.progress import carry_out
from bench.results import RESULTS, Results
from bench.run import Options, Run, Step
from bench.tables import grids

MEASURES: dict[str, Callable[[Run], list[Step]]] = {
    "ingest": ingest.steps,
    "lone": lone.steps,
    "verify": verify.steps,
    "process": process.steps,
    "latency": latency.steps,
    "growth": growth.steps,
    "crash": crash.steps,
}

QUICK = ("ingest", "lone", "verify", "process")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m bench", description=__doc__)
    measures, names = list(MEASURES), [entry.name for entry in FIELD]
    add = parser.add_argument
    add("measures", nargs="*", metavar="MEASURE", help=f"{', '.join(measures)}; all if left out")
    add("--rounds", type=int, default=Options.rounds, help="how often each is measured")
    add("--seconds", type=float, default=Options.seconds, help="how long each load lasts")
    add("--only", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(names)}")
    add("--store", choices=STORES, default=STORES[0], help="PostgreSQL, or SQLite")
    add("--jobs", type=int, help="jobs to work off, instead of 20,000, or less for the slow")
    add("--events", type=int, nargs="+", default=list(Options.growth_events),
        help="growth: at so many finished events")  # fmt: skip
    add("--backlog", type=int, default=Options.backlog_events,
        help="growth: at so many queued events")  # fmt: skip
    add("--quick", action="store_true",
        help=f"one round of a second each; {', '.join(QUICK)} if no MEASURE is named")  # fmt: skip
    add("--json", action="store_true", help="print the results as JSON, not as tables")
    add("--results", type=Path, default=RESULTS, help="the folder for the results")
    add("--write-docs", action="store_true",
        help="write docs/benchmarks.md from the results; with no MEASURE, only that")  # fmt: skip
    given = parser.parse_args(arguments)
    if unknown := set(given.measures) - set(measures):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    return given


def options(given: argparse.Namespace) -> Options:
    """What the measures need to know of the command line."""
    if given.quick:
        return Options(
            rounds=1,
            seconds=1.0,
            store=given.store,
            only=given.only,
            jobs=10_000,
            cap_seconds=2.0,
            growth_events=(100_000,),
            backlog_events=100_000,
        )
    return Options(
        rounds=given.rounds,
        seconds=given.seconds,
        store=given.store,
        only=given.only,
        jobs=given.jobs,
        growth_events=given.events,
        backlog_events=given.backlog,
    )


def measure(names: Sequence[str], how: Options, console: Console) -> dict[str, Results]:
    """Carry out some measures; answers with the results of each, by its name."""
    with open_databases(how.store) as databases:
        run = Run(how, databases)
        try:
            facts = machine() | databases.facts()
            plan = [(name, step) for name in names for step in MEASURES[name](run)]
            outcomes = carry_out([step for _, step in plan], console)
        finally:
            shutil.rmtree(run.folder, ignore_errors=True)
    every = {name: Results(name, how.store, facts) for name in names}
    for (name, _), outcome in zip(plan, outcomes, strict=True):
        every[name].samples += outcome.samples
        if outcome.failure:
            every[name].failures[outcome.step.label] = outcome.failure
    for name, found in every.items():
        reasons = {entry.name: entry.why_not() for entry in chosen(name, how.store, how.only)}
        found.not_run = {entry: reason for entry, reason in reasons.items() if reason}
    return {name: found for name, found in every.items() if found.samples or found.failures}


def show(every: dict[str, Results]) -> None:
    """Print the tables."""
    console = Console()
    for table in grids(every.values()):
        console.print(table.to_rich())
    if demands := targets.targets(every):
        console.print(targets.grid(demands).to_rich())


def main(arguments: Sequence[str]) -> None:
    """Measure, keep, print."""
    given = parse(arguments)
    if given.measures or not given.write_docs:
        names = given.measures or list(QUICK if given.quick else MEASURES)
        every = measure(names, options(given), Console(stderr=True))
        for found in every.values():
            found.facts["command"] = shlex.join(["python", "-m", "bench", *arguments])
        results.save(given.results, every.values())
        drawing = given.results / results.file_name("rates", given.store, "svg")
        drawing.write_text(draw(charts(results.load(given.results, list(MEASURES), [given.store]))))
        if given.json:
            kept = [found.to_json() for found in every.values()]
            sys.stdout.write(json.dumps(kept, ensure_ascii=False) + "\n")
        else:
            show(every)
    if given.write_docs:
        document.write(results.load(given.results, list(MEASURES), STORES))


if __name__ == "__main__":
    main(sys.argv[1:])
