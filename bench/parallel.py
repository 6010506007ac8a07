"""Contenders that are measured at the same time, because most of the time is a wait."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from bench.registry import Contender
from bench.results import Sample

Measure = Callable[[Contender], list[Sample]]


class ParallelGroup:
    """A trial for each contender, all of which start with the first."""

    def __init__(
        self, contenders: Sequence[Contender], prepare: Callable[[Contender], object], run: Measure
    ) -> None:
        self.contenders = contenders
        self._prepare = prepare
        self._run = run
        self._results: dict[str, Future[list[Sample]]] = {}

    def result(self, contender: Contender) -> list[Sample]:
        """Return the samples of one contender. Raises TrialFailed."""
        if not self._results:
            self._start()
        return self._results[contender.name].result()

    def _start(self) -> None:
        for contender in self.contenders:  # one after the other: databases are shared
            self._prepare(contender)
        threads = ThreadPoolExecutor(len(self.contenders))
        self._results = {
            contender.name: threads.submit(self._run, contender) for contender in self.contenders
        }
        threads.shutdown(wait=False)
