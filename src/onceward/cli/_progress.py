"""The progress of a long command, shown on a terminal while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from onceward.cli._console import escaped_text, make_console
from onceward.operate.maintenance import Step


def _make_progress() -> Progress:
    """Return lines on standard error. They vanish at the end, and are shown on a terminal only."""
    console = make_console(err=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def show_progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a line, and yield a function that replaces its text."""
    with _make_progress() as progress:
        task = progress.add_task(escaped_text(text).plain, total=None)
        yield lambda latest: progress.update(task, description=escaped_text(latest).plain)


class StepProgress:
    """Shows a line for each step, and keeps the steps for the end of the command."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], Step] = {}
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._progress = _make_progress()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    @property
    def steps(self) -> list[Step]:
        """The steps so far, each as it was reported last."""
        return list(self._latest.values())

    def report(self, step: Step) -> None:
        """Show a step, or the progress of one that was reported before."""
        key = step.action, step.subject
        self._latest[key] = step
        text = escaped_text(sentence(step)).plain
        if key in self._tasks:
            self._progress.update(self._tasks[key], description=text)
        else:
            self._tasks[key] = self._progress.add_task(text, total=None)


def sentence(step: Step) -> str:
    """Return a step in words, such as ``purge jobs: 1,200 rows``."""
    parts = [] if step.rows is None else [f"{step.rows:,} rows"]
    if step.kept:
        parts.append(f"{step.kept:,} kept for jobs that need them")
    if step.before is not None:
        parts.append(f"from before {step.before:%Y-%m-%d %H:%M} UTC")
    if step.jobs:
        parts.append(f"for {', '.join(map(str, step.jobs))}")
    return f"{step.action} {step.subject}" + (f": {', '.join(parts)}" if parts else "")
