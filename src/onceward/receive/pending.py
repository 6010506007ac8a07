"""The events of one request, pending until their commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any

from onceward.errors import LedgerUnavailable, RequestRefused
from onceward.model.events import Arrival, Receipt
from onceward.runtime.error_text import locate
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.receive")


class Pending:
    """The events of one request. Resolves to their receipts, or to the error that prevented them.

    Replaces asyncio.Future, which dominated the recorder's cost (decision 0008).
    """

    __slots__ = ("_callback", "_error", "_receipts", "arrivals", "size")

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals = arrivals
        self.size = sum([len(arrival.body) for arrival in arrivals])
        self._receipts: Sequence[Receipt] | None = None
        self._error: RequestRefused | None = None
        self._callback: Callable[[Pending], None] | None = None

    def done(self) -> bool:
        """Return whether the result or the error is set."""
        return self._receipts is not None or self._error is not None

    def result(self) -> Sequence[Receipt]:
        """Return the receipts. Raises RequestRefused if the events are not durable."""
        if self._receipts is None:
            raise self._error or LedgerUnavailable(
                "The commit is not finished. Retry later.", code="slow"
            )
        return self._receipts

    def add_done_callback(self, callback: Callable[[Pending], None]) -> None:
        """Call `callback` as soon as this is done, without waiting for the next loop iteration.

        Raises RuntimeError if there is a callback already.
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
                self.set_error(LedgerUnavailable("The request was cancelled."))
                raise
        return self.result()

    def set_result(self, receipts: Sequence[Receipt]) -> None:
        """Resolve to the receipts. Does nothing if already done."""
        if not self.done():
            self._receipts = receipts
            self._run_callback()

    def set_error(self, error: RequestRefused) -> None:
        """Resolve to an error. Does nothing if already done."""
        if not self.done():
            self._error = error
            self._run_callback()

    def _run_callback(self) -> None:
        if self._callback is not None:
            try:
                self._callback(self)
            except Exception as error:  # noqa: BLE001 - other requests still need their callbacks
                reason = locate(error)
                _log.error("response cannot be sent: %s", reason, extra=LogFields(error=reason))
