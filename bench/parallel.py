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
        """Return the samples of one contender. Raises the exception of its trial."""
        if not self._results:
            self._start()
        return self._results[contender.name].result()

    def _start(self) -> None:
        """Prepare one contender after the other, because they share databases; then run all."""
        self._results = {contender.name: Future() for contender in self.contenders}
        ready = [contender for contender in self.contenders if self._is_prepared(contender)]
        threads = ThreadPoolExecutor(len(self.contenders))
        for contender in ready:
            self._results[contender.name] = threads.submit(self._run, contender)
        threads.shutdown(wait=False)

    def _is_prepared(self, contender: Contender) -> bool:
        """Prepare a contender. A failure is its own: the others run."""
        try:
            self._prepare(contender)
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self._results[contender.name].set_exception(error)
            return False
        return True
