"""A request whose events wait for the commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any

from onceward.errors import LedgerUnavailable, RequestRefused
from onceward.model.events import Arrival, Receipt

_log = logging.getLogger("onceward.receive")


class Pending:
    """What came in one request, and its receipts once all is durable, or why there are none.

    A future would do, and would cost more than the rest of what the recorder does for a request.
    """

    __slots__ = ("_callback", "_error", "_receipts", "arrivals", "size")

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals = arrivals
        self.size = sum([len(arrival.body) for arrival in arrivals])
        self._receipts: Sequence[Receipt] | None = None
        self._error: RequestRefused | None = None
        self._callback: Callable[[Pending], None] | None = None

    def done(self) -> bool:
        """Whether it is there."""
        return self._receipts is not None or self._error is not None

    def result(self) -> Sequence[Receipt]:
        """The receipts. Raises RequestRefused (503)."""
        if self._receipts is None:
            raise self._error or LedgerUnavailable("There is no answer yet.", code="slow")
        return self._receipts

    def add_done_callback(self, callback: Callable[[Pending], None]) -> None:
        """Call `callback` as soon as it is done, in the same iteration of the loop.

        Only one callback can be added.
        """
        if self._callback is not None:
            raise RuntimeError("a Pending takes only one callback")
        self._callback = callback
        if self.done():
            self._run_callback()

    def __await__(self) -> Generator[Any, None, Sequence[Receipt]]:
        if not self.done():
            waiter = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
            try:
                yield from waiter
            except asyncio.CancelledError:
                self.set_error(LedgerUnavailable("The sender is gone."))
                raise
        return self.result()

    def set_result(self, receipts: Sequence[Receipt]) -> None:
        """Give the receipts, unless the request was answered before."""
        if not self.done():
            self._receipts = receipts
            self._run_callback()

    def set_error(self, error: RequestRefused) -> None:
        """Refuse the request, unless it was answered before."""
        if not self.done():
            self._error = error
            self._run_callback()

    def _run_callback(self) -> None:
        if self._callback is not None:
            try:
                self._callback(self)
            except Exception:  # noqa: BLE001 - whoever comes after it must be told too
                _log.exception("an answer could not be given")
