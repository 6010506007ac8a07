"""Sequential execution of trials, with a progress bar."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.processes import TrialFailed
from bench.results import Sample
from bench.run import Trial


@dataclass(frozen=True)
class Outcome:
    """The samples of a trial, or the reason of its failure."""

    trial: Trial
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None


def run_trials(trials: Sequence[Trial], console: Console) -> list[Outcome]:
    """Run all trials; a failed one is reported and does not stop the others."""
    total = sum(trial.seconds for trial in trials)
    outcomes = []
    began = time.monotonic()
    with _progress_bar(console) as bar:
        task = bar.add_task("", total=total, left="")
        completed = 0.0
        for trial in trials:
            elapsed = time.monotonic() - began
            left = _minutes((total - completed) * (elapsed / completed if completed else 1.0))
            bar.update(task, completed=completed, description=trial.label, left=left)
            if not console.is_terminal:
                sys.stderr.write(f"{completed / total:4.0%}  {left} left  {trial.label}\n")
            outcomes.append(_run(trial, console))
            completed += trial.seconds
    return outcomes


def _run(trial: Trial, console: Console) -> Outcome:
    try:
        return Outcome(trial, trial.run())
    except TrialFailed as error:
        message = str(error)
    except Exception as error:  # noqa: BLE001 - one trial must not cost the others' results
        console.print_exception()
        message = f"{type(error).__name__}: {error}"
    console.print(f"[red]{trial.label} failed:[/] ", end="")
    console.print(message, markup=False, highlight=False)
    first, *rest = message.splitlines()
    return Outcome(trial, failure=f"{first} {rest[-1]}" if rest else first)


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]} left  {task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
