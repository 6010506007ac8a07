"""``python -m mutants``: mutate the core one line at a time. Exit code 0, survivors or not."""

import json
import sys
import time
from collections.abc import Sequence

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mutants import document, results
from mutants.coverage import load_tests
from mutants.mutant import Mutant, one_line
from mutants.results import Result
from mutants.targets import files_of_tests
from mutants.tree import Tree
from mutants.trials import KILLED, Inconclusive, MutantRunner, Trial, all_mutants, in_random_order

DEFAULT_SEED = 20_261_118


@click.command()
@click.option("--seed", type=int, default=DEFAULT_SEED, show_default=True, help="Which sample.")
@click.option("--minutes", type=float, default=45.0, show_default=True, help="Limit the time.")
@click.option("--count", type=int, help="Limit the number of mutants.")
@click.option("--only", metavar="MODULE[:LINE]", help="Mutate one module, such as work/worker.py.")
@click.option("--test-seconds", type=float, default=45.0, show_default=True, help="Per mutant.")
@click.option("--tests", multiple=True, metavar="FILE", help="Run the tests of these files only.")
@click.option("--list", "is_list", is_flag=True, help="List the mutants, and try none.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("--more", is_flag=True, help="Add to the last result: try mutants that it has not.")
@click.option("--again", is_flag=True, help="Try the survivors without a reason once more.")
@click.option("--page", is_flag=True, help="Drop results of removed code; rewrite docs/mutants.md.")
def main(
    *,
    seed: int,
    minutes: float,
    count: int | None,
    only: str | None,
    test_seconds: float,
    tests: tuple[str, ...],
    is_list: bool,
    as_json: bool,
    more: bool,
    again: bool,
    page: bool,
) -> None:
    """Mutate the core one line at a time, and see which mutants the tests kill."""
    console = Console(stderr=as_json, highlight=False)
    if unknown := set(tests) - set(files_of_tests()):
        message = f"{', '.join(sorted(unknown))}: name files such as tests/unit/test_slots.py"
        raise click.BadParameter(message, param_hint="--tests")
    mutants = all_mutants()
    if page:
        _keep(results.load(), mutants)
        return
    chosen = in_module(in_random_order(mutants, seed), only)
    last = results.load() if more or again else None
    if last is not None:
        chosen = open_survivors(chosen, last) if again else untried(chosen, last)
    chosen = chosen[:count]
    if is_list:
        _list(chosen, console)
        return
    trials = _try(chosen, console, files=tests, test_seconds=test_seconds, minutes=minutes)
    result = results.summarise(trials, seed=seed, candidates=len(mutants))
    console.print(result.headline)
    if last is not None:
        result = _keep(last.updated(result), mutants)
    elif only is None and count is None:
        result = _keep(result, mutants)
    if as_json:
        click.echo(json.dumps(result.as_json()))


def in_module(mutants: Sequence[Mutant], place: str | None) -> list[Mutant]:
    """Return the mutants of a module, or of one of its lines."""
    module, _, line = (place or "").partition(":")
    return [each for each in mutants if module in each.path and line in ("", str(each.line))]


def untried(mutants: Sequence[Mutant], last: Result) -> list[Mutant]:
    """Return the mutants that a result does not contain."""
    return [mutant for mutant in mutants if last.outcome(mutant) is None]


def open_survivors(mutants: Sequence[Mutant], last: Result) -> list[Mutant]:
    """Return the mutants that survived without a known reason."""
    reasons = results.load_reasons()
    return [
        mutant
        for mutant in mutants
        if last.outcome(mutant) not in {None, *KILLED}
        and (mutant.module, mutant.scope, mutant.change) not in reasons
    ]


def _keep(result: Result, mutants: Sequence[Mutant]) -> Result:
    """Save a result, without entries of code that is gone, and write the page."""
    current = result.limited_to(mutants)
    results.save(current)
    document.update_page(current)
    return current


def _list(mutants: Sequence[Mutant], console: Console) -> None:
    for mutant in mutants:
        text = f"{mutant.label} → {one_line(mutant.after)}"
        console.print(text, markup=False, soft_wrap=True)


def _try(
    mutants: Sequence[Mutant],
    console: Console,
    *,
    files: Sequence[str],
    test_seconds: float,
    minutes: float,
) -> list[Trial]:
    """Try mutants until the time is over."""
    ends_at = time.monotonic() + 60 * minutes
    trials: list[Trial] = []
    with Tree() as tree, _progress(console) as bar:
        task = bar.add_task("tracing the tests", total=None)
        tests = load_tests(
            tree,
            lambda done, total: bar.update(task, completed=done, total=total),
            only=files,
        )
        runner = MutantRunner(tree, tests, test_seconds)
        for mutant in mutants:
            if time.monotonic() > ends_at:
                break
            bar.update(task, completed=len(trials), total=len(mutants), description=mutant.module)
            try:
                trials.append(runner.run(mutant))
                _show(trials[-1], console)
            except Inconclusive as error:
                console.print(f"{mutant.label}: {error}", markup=False, style="red")
    if not trials:
        raise click.ClickException("no mutant was tried")
    return trials


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _show(trial: Trial, console: Console) -> None:
    text = f"{trial.outcome:11} {trial.seconds:5.1f} s  {trial.mutant.label}"
    style = None if trial.outcome in KILLED else "red"
    console.print(text, markup=False, soft_wrap=True, style=style)


if __name__ == "__main__":
    sys.exit(main())
