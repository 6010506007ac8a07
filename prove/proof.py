"""The whole proof: the models, both stores side by side, bad inputs, and the edge."""

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

from prove.bad_inputs import run_bad_inputs
from prove.edge import EdgeResult, run_edge
from prove.models.check import ModelsResult, check_models
from prove.plan import LONG, Plan
from prove.sabotage import active_sabotage
from prove.stages import StageRunner
from prove.verdict import Verdict, requirements
from prove.workbench import StoreResult

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)

MODELS = "models"
"""The stage that needs no store."""

ProgressQueue: TypeAlias = "Queue[tuple[str, int, int]]"
_progress_queue: list[ProgressQueue] = []
"""In a store's process: the queue to its parent."""


def prove(
    plan: Plan,
    stores: Sequence[str],
    seed: int,
    console: Console,
    only: str | None = None,
    *,
    skip_bad_inputs: bool = False,
) -> Verdict:
    """Run the models, all stages of each store, the bad inputs, and the edge.

    The bad inputs begin when the first store is done. The edge runs alone: it measures latencies.
    With `only`, run the models alone, or one stage of the stores. With `skip_bad_inputs`, leave
    those out.
    """
    is_partial = bool(active_sabotage() or only)
    started = time.monotonic()
    with Progress(*COLUMNS, console=console) as progress, ExitStack() as stack:
        context = get_context("spawn")
        queue: ProgressQueue = context.Queue()
        pool = stack.enter_context(
            ProcessPoolExecutor(
                max(1, len(stores)), context, initializer=_set_queue, initargs=(queue,)
            )
        )
        has_models = only == MODELS or not is_partial
        models = pool.submit(run_models, plan) if has_models else None
        _show_progress([models] if models else [], queue, progress, until=all)
        runs = [pool.submit(run_store, store, plan, seed, only) for store in stores]
        _show_progress(runs, queue, progress, until=any if runs else all)
        tests = None if is_partial or skip_bad_inputs else pool.submit(run_bad_inputs)
        _show_progress([*runs, *([tests] if tests else [])], queue, progress, until=all)
        results = [run.result() for run in runs]
        bad_inputs = tests.result() if tests else None
        edge = None if is_partial else pool.submit(run_edge_stages, plan, seed)
        _show_progress([edge] if edge else [], queue, progress, until=all)
    return Verdict(
        seed=seed,
        form=plan.name,
        sabotage=active_sabotage(),
        stage=only,
        seconds=time.monotonic() - started,
        results=results,
        requirements=requirements(plan, results),
        bad_inputs=bad_inputs,
        edge=edge.result() if edge else None,
        models=models.result() if models else None,
    )


def run_models(plan: Plan) -> ModelsResult:
    """Search the models in this process."""

    def show(done: int, total: int) -> None:
        _progress_queue[0].put((MODELS, done, total))

    return check_models(is_long=plan.name == LONG.name, progress=show)


def run_store(store: str, plan: Plan, seed: int, only: str | None) -> StoreResult:
    """Run the stages of one store in this process."""

    def show(stage: str, done: int, total: int) -> None:
        _progress_queue[0].put((f"{store}: {stage}", done, total))

    return StageRunner(store, plan, seed=seed, show=show).run(only)


def run_edge_stages(plan: Plan, seed: int) -> EdgeResult:
    """Run the stages of the HTTP edge in this process."""

    def show(stage: str, done: int, total: int) -> None:
        _progress_queue[0].put((stage, done, total))

    return run_edge(seed, show, streams=plan.streams)


def _set_queue(queue: ProgressQueue) -> None:
    _progress_queue.append(queue)


def _show_progress(
    runs: Sequence[Future[Any]],
    queue: ProgressQueue,
    progress: Progress,
    *,
    until: Callable[[Iterable[bool]], bool],
) -> None:
    """Show the progress of the stages until any or all runs have ended."""
    while not (until(run.done() for run in runs) and queue.empty()):
        try:
            stage, done, total = queue.get(timeout=0.2)
        except Empty:
            continue
        tasks = {task.description: task.id for task in progress.tasks}
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=total or None)
        progress.update(tasks[stage], completed=done, total=total or None)
