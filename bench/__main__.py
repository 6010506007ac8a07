"""Measure Onceward beside its alternatives, on one machine, in one run."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import document, results
from bench.databases import open_databases
from bench.environment import describe_environment
from bench.progress import run_trials
from bench.ratios import append_history, find_ratios, load_history, ratio_table
from bench.registry import CONTENDERS, STORES, select
from bench.results import Results
from bench.run import Options, Run, Schedule
from bench.schedule import BENCHMARKS, PUBLISHED, QUICK
from bench.seed import ID_ORDERS
from bench.table import Table
from bench.tables import make_tables

QUICK_OPTIONS: dict[str, Any] = {
    "max_jobs": 10_000,
    "growth_events": (100_000,),
    "backlog_events": 100_000,
    "retention_events": 240_000,
    "retention_live_events": 20_000,
}
PIPE_WIDTH = 160


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("python -m bench", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_refresh(commands)
    docs = commands.add_parser("docs", help="rewrite docs/benchmarks.md from the stored results")
    docs.set_defaults(command=write_docs)
    listing = commands.add_parser("list", help="list the benchmarks and the contenders")
    listing.set_defaults(command=list_contenders)
    return parser


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("run", help="run some benchmarks and print the tables")
    parser.set_defaults(command=run_and_print)
    add = parser.add_argument
    add("benchmarks", nargs="*", type=_benchmark, metavar="BENCHMARK",
        help=f"{', '.join(BENCHMARKS)} (default: all)")  # fmt: skip
    add("--store", choices=STORES, default=STORES[0], help="default: %(default)s")
    add("--contender", nargs="+", default=[], metavar="NAME",
        help="only contenders whose name begins with NAME")  # fmt: skip
    add("--rounds", type=int, metavar="N", help="rounds of each benchmark")
    add("--seconds", type=float, metavar="S", help="seconds of each measurement")
    add("--quick", action="store_true", help="one short round: a check that it works, no result")
    add("--jobs", type=int, metavar="N", help="queue at most N jobs for each worker")
    add("--growth-events", type=int, nargs="+", metavar="N", help="growth: sizes of the ledger")
    add("--growth-ids", choices=ID_ORDERS, nargs="+", metavar="ORDER",
        help=f"growth: order of the event ids, {' or '.join(ID_ORDERS)}")  # fmt: skip
    add("--retention-events", type=int, metavar="N", help="retention: size of the ledger")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--save", type=Path, metavar="FOLDER", help="store the results")


def _add_refresh(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "refresh", help="run everything on both stores, store the results and rewrite the docs"
    )
    parser.set_defaults(command=refresh)
    parser.add_argument(
        "benchmarks", nargs="*", type=_benchmark, metavar="BENCHMARK", help="refresh only these"
    )


def _benchmark(name: str) -> str:
    if name not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(BENCHMARKS)}")
    return name


def run_and_print(arguments: argparse.Namespace) -> None:
    """Run some benchmarks on one store and print the tables or JSON."""
    schedule = {
        name: replace(
            QUICK if arguments.quick else published,
            **_given(rounds=arguments.rounds, seconds=arguments.seconds),
        )
        for name, published in PUBLISHED[arguments.store].items()
        if name in (arguments.benchmarks or BENCHMARKS)
    }
    options = Options(
        store=arguments.store,
        contenders=arguments.contender,
        **(QUICK_OPTIONS if arguments.quick else {})
        | _given(
            max_jobs=arguments.jobs,
            growth_events=arguments.growth_events,
            growth_ids=arguments.growth_ids,
            retention_events=arguments.retention_events,
        ),
    )
    every = measure(schedule, options)
    if arguments.save:
        results.save(arguments.save, every)
    if arguments.json:
        sys.stdout.write(json.dumps([found.to_json() for found in every], ensure_ascii=False))
    else:
        print_tables(every)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def refresh(arguments: argparse.Namespace) -> None:
    """Run the published schedule on both stores, store the results and rewrite the docs."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        sys.stderr.write(
            f"This machine is busy (load {load:.1f} on {cores} cores): expect noise.\n"
        )
    every = []
    for store in STORES:
        schedule = {
            name: published
            for name, published in PUBLISHED[store].items()
            if name in (arguments.benchmarks or BENCHMARKS)
        }
        if schedule:
            measured = measure(schedule, Options(store=store))
            results.save(results.FOLDER, measured)
            every += measured
    append_history(results.FOLDER, every)
    write_docs(arguments)
    print_tables(every)


def write_docs(_: argparse.Namespace) -> None:
    """Rewrite docs/benchmarks.md and its charts from the stored results."""
    stored = results.load(results.FOLDER, list(BENCHMARKS), STORES)
    document.write(stored, load_history(results.FOLDER))


def list_contenders(_: argparse.Namespace) -> None:
    """Print each contender with its benchmarks, or the reason why it cannot run here."""
    rows = [
        [
            contender.name,
            contender.title,
            contender.missing_requirement() or ", ".join(sorted(contender.benchmarks)),
        ]
        for contender in CONTENDERS
    ]
    columns = ["name", "contender", "benchmarks"]
    _console().print(Table("Contenders", columns, rows, text_columns=3).to_rich())


def measure(schedule: Mapping[str, Schedule], options: Options) -> list[Results]:
    """Run some benchmarks on one store and return the results of each."""
    every = {name: Results(name, options.store) for name in schedule}
    with open_databases(options.store) as databases:
        run = Run(options, databases)
        try:
            environment = describe_environment() | databases.describe()
            trials = [
                (name, trial)
                for name, timing in schedule.items()
                for trial in BENCHMARKS[name](run, timing)
            ]
            outcomes = run_trials([trial for _, trial in trials], Console(stderr=True))
        finally:
            run.close()
    for (name, _), outcome in zip(trials, outcomes, strict=True):
        every[name].samples += outcome.samples
        if outcome.failure:
            every[name].failures[outcome.trial.label] = outcome.failure
    environment["command"] = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    for name, found in every.items():
        found.environment = environment
        reasons = {
            contender.name: contender.missing_requirement()
            for contender in select(name, options.store, options.contenders)
        }
        found.not_run = {contender: reason for contender, reason in reasons.items() if reason}
    return [found for found in every.values() if found.samples or found.failures]


def print_tables(every: Sequence[Results]) -> None:
    """Print the tables and the ratios."""
    console = _console()
    for found in every:
        for table in make_tables(found):
            console.print(table.to_rich(), "")
    if ratios := find_ratios(every):
        console.print(ratio_table(ratios, load_history(results.FOLDER)).to_rich())


def _console() -> Console:
    """Return a console that is wide enough when the output goes to a pipe."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def main() -> None:
    """Run the command."""
    arguments = make_parser().parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
