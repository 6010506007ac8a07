"""How far a run is, and how long it still takes."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.process import Failed
from bench.results import Sample
from bench.run import Step


@dataclass(frozen=True)
class Outcome:
    """What became of a step: its samples, or why there are none."""

    step: Step
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None


def carry_out(steps: Sequence[Step], console: Console) -> list[Outcome]:
    """Do the steps one after the other. One that fails is told, and does not stop the others."""
    total = sum(step.seconds for step in steps)
    found = []
    began = time.monotonic()
    with _bar(console) as bar:
        task = bar.add_task("", total=total, left="")
        past = 0.0
        for step in steps:
            elapsed = time.monotonic() - began
            left = _minutes((total - past) * (elapsed / past if past else 1.0))
            bar.update(task, completed=past, description=step.label, left=left)
            if not console.is_terminal:
                sys.stderr.write(f"{past / total:4.0%}  {left} left  {step.label}\n")
            found.append(_try(step, console))
            past += step.seconds
    return found


def _try(step: Step, console: Console) -> Outcome:
    try:
        return Outcome(step, step.run())
    except Failed as failed:
        console.print(f"[red]{step.label} failed:[/] ", end="")
        console.print(str(failed), markup=False, highlight=False)
        first, *_, last = f"{failed}\n".splitlines()
        return Outcome(step, failure=f"{first} {last}" if last != first else first)


def _bar(console: Console) -> Progress:
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
