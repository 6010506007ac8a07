"""Group commit: deliveries that wait together are written together.

There is no artificial delay: a lone delivery is written at once, and what arrives while a batch is
being written forms the next one. What came in one request stays together. What seems to repeat
events and what seems to be new is written in turn, because these are different statements. What
waits is bounded, in number, in bytes and in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from onceward.errors import LedgerUnavailable, Overloaded, StoreError, Unwritable
from onceward.model.events import Arrival, Receipt
from onceward.ports import BatchGroup, Ledger
from onceward.receive.pending import Pending
from onceward.runtime.clock import Clock
from onceward.runtime.deadlines import Deadlines
from onceward.runtime.error_text import locate
from onceward.runtime.redact import redact
from onceward.settings import Settings

_log = logging.getLogger("onceward.record")
SLOW_WRITE_SECONDS: Final = 0.05


class Recorder:
    """Takes deliveries one by one and writes them in batches."""

    def __init__(self, ledger: Ledger, settings: Settings, clock: Clock) -> None:
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._new: deque[Pending] = deque()
        self._repeats: deque[Pending] = deque()
        self._queues = deque((self._new, self._repeats))
        self._deadlines = Deadlines(settings.commit_timeout_seconds, _expire)
        self._pending_events = 0
        self._pending_bytes = 0
        self._writers: set[asyncio.Task[None]] = set()
        self._last_batch_at = 0.0
        self._slow_timer: asyncio.TimerHandle | None = None
        self._rejected = 0

    def submit(self, arrivals: Sequence[Arrival]) -> Pending:
        """Queue what came in one request. What comes back has the receipts once all are durable.

        Raises Overloaded when too much waits already. The result raises LedgerUnavailable when
        the ledger does not commit in time or cannot be used.
        """
        pending = Pending(arrivals)
        if (
            self._pending_events >= self._settings.max_pending_events
            or self._pending_bytes + pending.size > self._settings.max_pending_bytes
        ):
            raise Overloaded("Too many deliveries wait for the ledger. Try again later.")
        if not arrivals:  # a request that held no events
            pending.set_result(())
            return pending
        self._deadlines.add(pending)
        self._pending_events += len(arrivals)
        self._pending_bytes += pending.size
        group = min(map(self._ledger.batch_group, arrivals))
        (self._new if group is BatchGroup.NEW else self._repeats).append(pending)
        if not self._writers or self._pending_requests >= self._settings.max_batch_events:
            self._add_writer()
        elif self._slow_timer is None:
            self._arm_slow_timer()
        return pending

    @property
    def _pending_requests(self) -> int:
        return len(self._new) + len(self._repeats)

    def _add_writer(self) -> None:
        """Write what waits, beside what is being written.

        One lane makes larger batches, and these cost less; another one helps when a whole batch
        waits, or when the ledger takes long.
        """
        if len(self._writers) < self._ledger.max_writers:
            self._writers.add(asyncio.create_task(self._write_batches()))

    def _arm_slow_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._slow_timer = loop.call_later(SLOW_WRITE_SECONDS, self._add_writer_if_slow)

    def _add_writer_if_slow(self) -> None:
        """Open another lane when something waits, and no batch was begun for a while."""
        self._slow_timer = None
        if self._pending_requests:
            if self._clock.monotonic() - self._last_batch_at > SLOW_WRITE_SECONDS:
                self._add_writer()
            self._arm_slow_timer()

    async def close(self) -> None:
        """Write what waits. Whoever still does after the time for an answer has had one."""
        if self._writers:
            await asyncio.wait(set(self._writers), timeout=self._settings.commit_timeout_seconds)
        self._deadlines.close()
        if self._slow_timer is not None:
            self._slow_timer.cancel()

    async def _write_batches(self) -> None:
        try:
            while self._pending_requests:
                batch = self._next_batch()
                self._last_batch_at = self._clock.monotonic()
                try:
                    if batch:
                        await self._write(batch)
                finally:
                    self._release(batch)
        finally:
            # At once, not in a callback: what is submitted from now on needs another lane.
            self._writers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _next_batch(self) -> list[Pending]:
        """The next batch, of one kind. It is empty where nobody waits for an answer any more."""
        self._queues.rotate()
        queue = self._queues[0] or self._queues[1]
        batch: list[Pending] = []
        room = self._settings.max_batch_events
        while queue and (not batch or room >= len(queue[0].arrivals)):
            pending = queue.popleft()
            if pending.done():  # it was told to come back later
                self._release([pending])
            else:
                batch.append(pending)
                room -= len(pending.arrivals)
        return batch

    def _release(self, batch: Sequence[Pending]) -> None:
        for pending in batch:
            self._pending_events -= len(pending.arrivals)
            self._pending_bytes -= pending.size

    async def _write(self, batch: Sequence[Pending]) -> None:
        try:
            receipts = await self._ledger.record(
                [arrival for pending in batch for arrival in pending.arrivals]
            )
        except Unwritable as error:
            await self._write_halves(batch, error)
        except StoreError as error:
            self._reject(batch, redact(str(error)))
        except Exception as error:  # noqa: BLE001 - whoever waits must be answered
            self._reject(batch, locate(error))
        else:
            self._log_recovery()
            # Not yet: to tell the senders takes a while, and the next batch can be written then.
            asyncio.get_running_loop().call_soon(_deliver, batch, receipts)

    def _reject(self, batch: Sequence[Pending], reason: str) -> None:
        """Refuse a batch. An outage is told when it begins and when it ends, not in between."""
        if self._rejected == 0:
            _log.warning("the ledger cannot be written, senders are asked to retry: %s", reason)
        self._rejected += len(batch)
        for pending in batch:
            pending.set_error(
                LedgerUnavailable("The ledger cannot be written now. Try again later.")
            )

    def _log_recovery(self) -> None:
        if self._rejected:
            _log.warning("the ledger can be written again; %d were asked to retry", self._rejected)
            self._rejected = 0

    async def _write_halves(self, batch: Sequence[Pending], error: Unwritable) -> None:
        """One delivery that the database refuses must not take the others down with it."""
        if len(batch) == 1:
            _log.error("a delivery could not be recorded: %s", redact(str(error)))
            message = "The ledger refused this delivery."
            batch[0].set_error(LedgerUnavailable(message, code="not_recorded"))
            return
        middle = len(batch) // 2
        await self._write(batch[:middle])
        await self._write(batch[middle:])


def _deliver(batch: Sequence[Pending], receipts: Sequence[Receipt]) -> None:
    """Answer each request with its own receipts."""
    first = 0
    for pending in batch:
        last = first + len(pending.arrivals)
        pending.set_result(receipts[first:last])
        first = last


def _expire(pending: Pending) -> None:
    """Answer what has waited too long; it may still be written."""
    message = "The ledger is slow. Try again later."
    pending.set_error(LedgerUnavailable(message, code="slow"))
