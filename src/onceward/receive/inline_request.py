"""The events of one request to an inline source, until their handlers have run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from onceward.errors import LedgerUnavailable
from onceward.model.events import Arrival
from onceward.model.inline import InlineResult

ProcessInline = Callable[[Sequence[Arrival]], Awaitable[Sequence[InlineResult]]]
"""Runs the handlers of a request and commits. Raises RequestRefused."""


class InlineRequest:
    """A verified request whose handlers run before its response."""

    __slots__ = ("_results", "arrivals")

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals = arrivals
        self._results: Sequence[InlineResult] | None = None

    async def process(self, process: ProcessInline) -> None:
        """Run the handlers and keep the results. Raises RequestRefused."""
        self._results = await process(self.arrivals)

    def results(self) -> Sequence[InlineResult]:
        """Return the result of each event. Raises LedgerUnavailable before the handlers ran."""
        if self._results is None:
            raise LedgerUnavailable("The handlers have not run. Retry later.")
        return self._results
