"""The whole proof: both stores side by side, each in a process of its own, and the bad inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.queues import Queue
from queue import Empty
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from prove.inputs import run_inputs
from prove.plan import Plan
from prove.sabotage import chosen
from prove.stages import Result, Stages
from prove.verdict import Verdict, requirements

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)

News: TypeAlias = "Queue[tuple[str, int, int]]"
_news: list[News] = []
"""Where a store's process tells how far it is."""


def prove(plan: Plan, stores: Sequence[str], seed: int, console: Console) -> Verdict:
    """Take each store through all of its stages, side by side, and then the bad inputs."""
    begun = time.monotonic()
    with Progress(*COLUMNS, console=console) as progress, ExitStack() as graves:
        context = get_context("spawn")
        news: News = context.Queue()
        pool = graves.enter_context(
            ProcessPoolExecutor(len(stores), context, initializer=_begin, initargs=(news,))
        )
        runs = [pool.submit(run_store, store, plan, seed) for store in stores]
        _follow(runs, news, progress, until=any)
        tests = None if chosen() else pool.submit(run_inputs)
        _follow([*runs, *([tests] if tests else [])], news, progress, until=all)
        results = [run.result() for run in runs]
        inputs = tests.result() if tests else None
    return Verdict(
        seed=seed,
        form=plan.name,
        sabotage=chosen(),
        seconds=time.monotonic() - begun,
        results=results,
        requirements=requirements(plan, results),
        inputs=inputs,
    )


def run_store(store: str, plan: Plan, seed: int) -> Result:
    """All stages of one store, in a process of their own."""

    def show(stage: str, done: int, total: int) -> None:
        _news[0].put((f"{store}: {stage}", done, total))

    return Stages(store, plan, seed=seed, show=show).run()


def _begin(news: News) -> None:
    _news.append(news)


def _follow(
    runs: Sequence[Future[Any]],
    news: News,
    progress: Progress,
    *,
    until: Callable[[Iterable[bool]], bool],
) -> None:
    """Show how far the stages are, until any or all have ended."""
    while not (until(run.done() for run in runs) and news.empty()):
        try:
            stage, done, total = news.get(timeout=0.2)
        except Empty:
            continue
        known = {task.description: task.id for task in progress.tasks}
        if stage not in known:
            known[stage] = progress.add_task(stage, total=total or None)
        progress.update(known[stage], completed=done, total=total or None)
