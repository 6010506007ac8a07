"""Group commit: deliveries that wait together are written together.

There is no artificial delay: a lone delivery is written at once, and what arrives while a batch is
being written forms the next one. What came in one request stays together. What seems to repeat
events is written apart from what seems to be new, so that neither waits for the other. What waits
is bounded, in number, in bytes and in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from onceward.deadlines import Deadlines
from onceward.errors import RequestRefused, StoreError, Unwritable
from onceward.model import Arrival, Receipt
from onceward.ports import Ledger
from onceward.redact import redact
from onceward.settings import Settings
from onceward.settle import locate

_log = logging.getLogger("onceward.record")
RETRY_AFTER: Final = (("retry-after", "2"),)
PATIENCE_SECONDS: Final = 0.05

Answer = asyncio.Future[Sequence[Receipt]]
_Waiting = tuple[Sequence[Arrival], Answer]


class _Queue:
    """Deliveries that are written together."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.lanes = 0
        self.last_began = 0.0


class Recorder:
    """Takes deliveries one by one and writes them in batches."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger = ledger
        self._settings = settings
        self._new, self._known = _Queue(), _Queue()
        self._deadlines = Deadlines(settings.answer_within_seconds, _expire)
        self._held_events = 0
        self._held_bytes = 0
        self._lanes: set[asyncio.Task[None]] = set()
        self._refused = 0

    def submit(self, arrivals: Sequence[Arrival]) -> Answer:
        """Queue what came in one request. The future has the receipts once all are durable.

        Raises RequestRefused (503) when too much waits already, and so does the future when the
        ledger does not answer in time or cannot be used.
        """
        size = _size(arrivals)
        if (
            self._held_events >= self._settings.waiting_events
            or self._held_bytes + size > self._settings.waiting_bytes
        ):
            raise refusal("overloaded", "Too many deliveries wait for the ledger. Try again later.")
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        if not arrivals:  # a request that held no events
            answer.set_result(())
            return answer
        self._deadlines.add(answer)
        self._held_events += len(arrivals)
        self._held_bytes += size
        is_known = all(map(self._ledger.seems_known, arrivals))
        queue = self._known if is_known else self._new
        queue.waiting.append((arrivals, answer))
        if self._wants_lane(queue, loop.time()):
            queue.lanes += 1
            self._lanes.add(loop.create_task(self._drain(queue)))
        return answer

    def _wants_lane(self, queue: _Queue, now: float) -> bool:
        """Whether what waits is to be written beside what is being written.

        One lane for each queue makes larger batches, and these cost less; another one helps when a
        whole batch waits, or when the ledger takes long.
        """
        if not queue.lanes:
            return True
        return len(self._lanes) < self._ledger.lanes and (
            len(queue.waiting) >= self._settings.batch_events
            or now - queue.last_began > PATIENCE_SECONDS
        )

    async def close(self) -> None:
        """Write what waits. Whoever still does after the time for an answer has had one."""
        if self._lanes:
            await asyncio.wait(set(self._lanes), timeout=self._settings.answer_within_seconds)
        self._deadlines.close()

    async def _drain(self, queue: _Queue) -> None:
        try:
            while batch := self._take(queue):
                queue.last_began = asyncio.get_running_loop().time()
                try:
                    await self._write(batch)
                finally:
                    self._release(batch)
        finally:
            # At once, not in a callback: what is submitted from now on needs another lane.
            queue.lanes -= 1
            self._lanes.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _take(self, queue: _Queue) -> list[_Waiting]:
        batch: list[_Waiting] = []
        room = self._settings.batch_events
        while queue.waiting and (not batch or room >= len(queue.waiting[0][0])):
            waiting = queue.waiting.popleft()
            if waiting[1].done():  # it was told to come back later
                self._release([waiting])
            else:
                batch.append(waiting)
                room -= len(waiting[0])
        return batch

    def _release(self, batch: Sequence[_Waiting]) -> None:
        for arrivals, _ in batch:
            self._held_events -= len(arrivals)
            self._held_bytes -= _size(arrivals)

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        try:
            receipts = await self._ledger.record(
                [arrival for arrivals, _ in batch for arrival in arrivals]
            )
        except Unwritable as error:
            await self._write_apart(batch, error)
        except StoreError as error:
            self._give_up(batch, redact(str(error)))
        except Exception as error:  # noqa: BLE001 - whoever waits must be answered
            self._give_up(batch, locate(error))
        else:
            self._note_success()
            _give(batch, receipts)

    def _give_up(self, batch: Sequence[_Waiting], reason: str) -> None:
        """Refuse a batch. An outage is told when it begins and when it ends, not in between."""
        if self._refused == 0:
            _log.warning("the ledger cannot be written, senders are asked to retry: %s", reason)
        self._refused += len(batch)
        _refuse(batch, "unavailable", "The ledger cannot be written now. Try again later.")

    def _note_success(self) -> None:
        if self._refused:
            _log.warning("the ledger can be written again; %d were asked to retry", self._refused)
            self._refused = 0

    async def _write_apart(self, batch: Sequence[_Waiting], error: Unwritable) -> None:
        """One delivery that the database refuses must not take the others down with it."""
        if len(batch) == 1:
            _log.error("a delivery could not be recorded: %s", redact(str(error)))
            _refuse(batch, "not_recorded", "The ledger refused this delivery.")
            return
        middle = len(batch) // 2
        await self._write(batch[:middle])
        await self._write(batch[middle:])


def _size(arrivals: Sequence[Arrival]) -> int:
    return sum([len(arrival.body) for arrival in arrivals])


def _give(batch: Sequence[_Waiting], receipts: Sequence[Receipt]) -> None:
    """Answer each request with its own receipts."""
    first = 0
    for arrivals, answer in batch:
        last = first + len(arrivals)
        if not answer.done():
            answer.set_result(receipts[first:last])
        first = last


def refusal(code: str, message: str) -> RequestRefused:
    """The answer 503: nothing is known to be recorded, so the sender should try again."""
    return RequestRefused(503, code, message, headers=RETRY_AFTER)


def _refuse(batch: Sequence[_Waiting], code: str, message: str) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(refusal(code, message))


def _expire(answer: Answer) -> None:
    """Answer what has waited too long; it may still be written."""
    answer.set_exception(refusal("slow", "The ledger is slow. Try again later."))
