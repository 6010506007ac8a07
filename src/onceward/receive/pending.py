"""A request whose events wait for the commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from onceward.errors import RequestRefused
from onceward.model.events import Arrival, Receipt

_log = logging.getLogger("onceward.receive")

RETRY_AFTER: Final = (("retry-after", "2"),)


class Pending:
    """What came in one request, and its receipts once all is durable, or why there are none.

    A future would do, and would cost more than the rest of what the recorder does for a request.
    """

    __slots__ = ("_error", "_receipts", "_then", "arrivals", "size")

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals = arrivals
        self.size = sum([len(arrival.body) for arrival in arrivals])
        self._receipts: Sequence[Receipt] | None = None
        self._error: RequestRefused | None = None
        self._then: Callable[[Pending], None] | None = None

    def done(self) -> bool:
        """Whether it is there."""
        return self._receipts is not None or self._error is not None

    def result(self) -> Sequence[Receipt]:
        """The receipts. Raises RequestRefused (503)."""
        if self._receipts is None:
            raise self._error or refusal("slow", "There is no answer yet.")
        return self._receipts

    def then(self, call: Callable[[Pending], None]) -> None:
        """Call this one when it is there, at once: in the turn of the loop in which it comes."""
        self._then = call
        if self.done():
            self._tell()

    def __await__(self) -> Generator[Any, None, Sequence[Receipt]]:
        if not self.done():
            waiter = asyncio.get_running_loop().create_future()
            self.then(lambda _: None if waiter.done() else waiter.set_result(None))
            try:
                yield from waiter
            except asyncio.CancelledError:
                self.refuse("gone", "Nobody waits for it any more.")
                raise
        return self.result()

    def give(self, receipts: Sequence[Receipt]) -> None:
        """Answer with receipts, unless there was an answer before."""
        if not self.done():
            self._receipts = receipts
            self._tell()

    def refuse(self, code: str, message: str) -> None:
        """Answer that nothing is known to be recorded, unless there was an answer before."""
        if not self.done():
            self._error = refusal(code, message)
            self._tell()

    def _tell(self) -> None:
        if self._then is not None:
            try:
                self._then(self)
            except Exception:  # noqa: BLE001 - whoever comes after it must be told too
                _log.exception("an answer could not be given")


def refusal(code: str, message: str) -> RequestRefused:
    """The answer 503: nothing is known to be recorded, so the sender should try again."""
    return RequestRefused(503, code, message, headers=RETRY_AFTER)
