"""The events of one request, pending until their commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from itertools import islice
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

    __slots__ = (
        *("_callback", "_error", "_receipts", "_waiting_before", "_written"),
        *("arrivals", "part", "size", "waiting"),
    )

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals = arrivals
        self.part = arrivals
        """The events to write next: all of them, unless `cut` was called."""
        self.waiting = len(arrivals)
        """The number of events that are not written yet."""
        self.size = sum([arrival.size for arrival in arrivals])
        self._waiting_before = self.waiting
        self._written: Sequence[Receipt] = ()
        self._receipts: Sequence[Receipt] | None = None
        self._error: RequestRefused | None = None
        self._callback: Callable[[Pending], None] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a part of the events is written."""
        return self.waiting < len(self.arrivals)

    def has_progressed(self) -> bool:
        """Return whether a part of the events was written since the last call."""
        before, self._waiting_before = self._waiting_before, self.waiting
        return self.waiting < before

    @property
    def has_more_parts(self) -> bool:
        """Whether events follow those of the current part."""
        return len(self.part) < self.waiting

    def cut(self, max_events: int, max_bytes: int) -> None:
        """Make `part` the next events, within these limits unless one event has more bytes."""
        start = end = len(self.arrivals) - self.waiting
        size = 0
        for arrival in islice(self.arrivals, start, start + max_events):
            size += arrival.size
            if size > max_bytes and end > start:
                break
            end += 1
        self.part = self.arrivals[start:end]

    def keep(self, receipts: Sequence[Receipt]) -> None:
        """Keep the receipts of a part until the last one is written. `part` is the rest then."""
        self._written = [*self._written, *receipts]
        self.waiting -= len(receipts)
        self.part = self.arrivals[len(self._written) :]

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
        """Resolve to the kept receipts and these. Does nothing if already done."""
        if not self.done():
            self._receipts = [*self._written, *receipts] if self._written else receipts
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
