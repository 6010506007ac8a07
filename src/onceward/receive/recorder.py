"""Group commit: pending requests are written in batches.

Nothing waits to fill a batch: a lone request is written at once, and requests that arrive during a
write form the next batch. The events of one request stay in one batch, if they fit. Else they are
written in parts, one after the other, and what waits has its turn between them. Batches of new
events and of duplicates alternate, because they take different statements. Pending requests are
bounded in number, in bytes and in time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from onceward.errors import LedgerUnavailable, Overloaded, StoreError, Unwritable
from onceward.model.events import Arrival, Receipt
from onceward.ports import BatchGroup, Ledger
from onceward.receive.pending import Pending
from onceward.runtime.clock import Clock
from onceward.runtime.deadlines import Deadlines
from onceward.runtime.error_text import describe, locate, public_reason
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import as_sentence
from onceward.settings import Settings

_log = logging.getLogger("onceward.receive")
CHECK_INTERVAL_SECONDS: Final = 5.0
"""Interval at which the ledger is checked for an outage that no request meets."""

MAX_OUTAGE_REASONS: Final = 5
"""Reasons that are logged for one outage."""
_DIGITS: Final = re.compile(r"\d+")

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of bodies and headers in one transaction, unless one event has more."""

SLOW_WRITE_SECONDS: Final = 0.05
"""A write that takes longer gets a second writer beside it."""


class Recorder:
    """Writes the events of many requests in few transactions."""

    def __init__(self, ledger: Ledger, settings: Settings, clock: Clock) -> None:
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._new: deque[Pending] = deque()
        self._duplicates: deque[Pending] = deque()
        self._queues = deque((self._new, self._duplicates))
        self._deadlines = Deadlines(settings.commit_timeout_seconds, self._expire)
        self._pending_events = 0
        self._pending_bytes = 0
        self._writers: set[asyncio.Task[None]] = set()
        self._last_batch_at = 0.0
        self._slow_timer: asyncio.TimerHandle | None = None
        self._outage_reasons: set[str] = set()
        self._rejected = 0
        self._refusal = ""
        self._has_check_failed = False

    def submit(self, arrivals: Sequence[Arrival]) -> Pending:
        """Queue the events of one request and return their pending receipts.

        Raises Overloaded if too much is pending. The result raises LedgerUnavailable if the ledger
        does not commit in time or cannot be used.
        """
        pending = Pending(arrivals)
        if not self._has_room(pending):
            raise Overloaded("Too many requests wait for the ledger. Retry later.")
        if not arrivals:  # a request may contain no events
            pending.set_result(())
            return pending
        self._deadlines.add(pending)
        self._enqueue(pending)
        if not self._writers or self._pending_requests >= self._settings.max_batch_events:
            self._add_writer()
        elif self._slow_timer is None:
            self._arm_slow_timer()
        return pending

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warning while writes fail: from the last one that failed until one succeeds."""
        if not self._refusal:
            return ()
        text = f"The last events could not be recorded, and their senders got 503: {self._refusal}"
        return (f"{as_sentence(text)} The log onceward.receive has the details.",)

    async def check(self) -> None:
        """Log an outage that no request has met, and its end. Never raises StoreError."""
        try:
            await self._ledger.ready()
        except StoreError as error:
            self._has_check_failed = True
            self._begin_outage(describe(error))
        else:
            if self._has_check_failed:
                self._recover()

    @property
    def _pending_requests(self) -> int:
        return len(self._new) + len(self._duplicates)

    def _has_room(self, pending: Pending) -> bool:
        """Return whether a request may be queued. One above the bytes by itself must be alone."""
        return not self._pending_events or (
            self._pending_events < self._settings.max_pending_events
            and self._pending_bytes + pending.size <= self._settings.max_pending_bytes
        )

    def _enqueue(self, pending: Pending) -> None:
        max_events = self._settings.max_batch_events
        if pending.waiting > max_events or pending.size > MAX_BATCH_BYTES:
            pending.cut(max_events, MAX_BATCH_BYTES)
        self._pending_events += pending.waiting
        self._pending_bytes += pending.size  # all: a body is kept until the last part is written
        group = min(map(self._ledger.batch_group, pending.part))
        (self._new if group is BatchGroup.NEW else self._duplicates).append(pending)

    def _add_writer(self) -> None:
        """Start a writer, unless the ledger has its maximum.

        One writer makes larger batches, which cost less per event. A second helps when a full
        batch is pending or a write is slow.
        """
        if len(self._writers) < self._ledger.max_writers:
            self._writers.add(asyncio.create_task(self._write_batches()))

    def _arm_slow_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._slow_timer = loop.call_later(SLOW_WRITE_SECONDS, self._add_writer_if_slow)

    def _add_writer_if_slow(self) -> None:
        """Add a writer if requests are pending and no batch was started lately."""
        self._slow_timer = None
        if self._pending_requests:
            if self._clock.monotonic() - self._last_batch_at > SLOW_WRITE_SECONDS:
                self._add_writer()
            self._arm_slow_timer()

    async def close(self) -> None:
        """Flush pending batches, for as long as a commit may take. What is left gets 503."""
        if self._writers:
            await asyncio.wait(set(self._writers), timeout=self._settings.commit_timeout_seconds)
        self._deadlines.close()
        for pending in self._deadlines.unfinished():
            self._refuse_as_slow(pending)
        if self._slow_timer is not None:
            self._slow_timer.cancel()

    async def _write_batches(self) -> None:
        try:
            while self._pending_requests:
                batch = self._next_batch()
                self._last_batch_at = self._clock.monotonic()
                # Before the write, which queues the rest of a large request and counts it anew.
                waiting = sum([pending.waiting for pending in batch])
                try:
                    if batch:
                        await self._write(batch)
                finally:
                    self._pending_events -= waiting
                    self._pending_bytes -= sum([pending.size for pending in batch])
        finally:
            # Not in a callback: a request submitted right after this needs a new writer.
            self._writers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _next_batch(self) -> list[Pending]:
        """Return the next batch of one group. It is empty if all its requests have expired.

        Every part of a request but the last is a batch of its own. Once a part is written, the
        others follow even if the request has expired: its sender finds all events when it retries.
        """
        self._queues.rotate()
        queue = self._queues[0] or self._queues[1]
        batch: list[Pending] = []
        events, size = self._settings.max_batch_events, MAX_BATCH_BYTES
        while queue and (not batch or (events >= queue[0].waiting and size >= queue[0].size)):
            pending = queue.popleft()
            if pending.done() and not pending.is_begun:  # expired or cancelled
                self._pending_events -= pending.waiting
                self._pending_bytes -= pending.size
            else:
                batch.append(pending)
                events -= pending.waiting
                size -= pending.size
        return batch

    async def _write(self, batch: Sequence[Pending]) -> None:
        try:
            receipts = await self._ledger.record(
                [arrival for pending in batch for arrival in pending.part]
            )
        except Unwritable as error:
            await self._write_halves(batch, error)
        except StoreError as error:
            self._has_check_failed = False  # only a write can show that writes work again
            self._refusal = public_reason(error)
            self._reject(batch, describe(error))
        except Exception as error:  # noqa: BLE001 - every pending request needs a response
            self._refusal = public_reason(error)
            self._reject(batch, locate(error))
        else:
            if self._refusal or self._outage_reasons:
                self._recover()
            self._rejected = 0
            if batch[0].has_more_parts:  # no other request is in the batch
                batch[0].keep(receipts)
                self._enqueue(batch[0])
                return
            # In the next iteration: building responses takes time in which the next batch can run.
            asyncio.get_running_loop().call_soon(_deliver, batch, receipts)

    def _reject(self, batch: Sequence[Pending], reason: str) -> None:
        self._begin_outage(reason)
        self._rejected += sum(not pending.done() for pending in batch)
        for pending in batch:
            pending.set_error(LedgerUnavailable("The ledger is unavailable. Retry later."))

    def _expire(self, pending: Pending) -> None:
        """Reject a request whose time is up, unless a part of it was written meanwhile.

        Its events may still be written.
        """
        if pending.has_progressed():
            self._deadlines.add(pending)
        else:
            self._refuse_as_slow(pending)

    def _refuse_as_slow(self, pending: Pending) -> None:
        self._rejected += 1
        message = "The ledger is slow. Retry later."
        pending.set_error(LedgerUnavailable(message, code="slow"))

    def count_retry(self) -> None:
        """Count a request that was asked to retry elsewhere, for the line that ends an outage."""
        self._rejected += 1

    def _begin_outage(self, reason: str) -> None:
        """Log an outage when it begins, and each further reason once: it may be the cause."""
        kind = _DIGITS.sub("", reason)
        if kind not in self._outage_reasons and len(self._outage_reasons) < MAX_OUTAGE_REASONS:
            self._outage_reasons.add(kind)
            fields = LogFields(error=reason)
            _log.warning("ledger unavailable; asking senders to retry: %s", reason, extra=fields)

    def _recover(self) -> None:
        """End the warning, and log the end of an outage."""
        self._refusal = ""
        self._has_check_failed = False
        if self._outage_reasons:
            self._outage_reasons.clear()
            message = "ledger available again; asked %d requests to retry"
            _log.warning(message, self._rejected, extra=LogFields(count=self._rejected))
            self._rejected = 0

    async def _write_halves(self, batch: Sequence[Pending], error: Unwritable) -> None:
        """Find the request that the database refuses by halving the batch; record the others."""
        if len(batch) == 1:
            self._refusal = public_reason(error)
            reason, source = describe(error), batch[0].arrivals[0].source
            _log.error(
                "database refuses a request; asking the sender to retry: %s",
                reason,
                extra=LogFields(source=source, error=reason),
            )
            message = "The database refused this request. The log has the reason."
            batch[0].set_error(LedgerUnavailable(message, code="not_recorded"))
            return
        middle = len(batch) // 2
        await self._write(batch[:middle])
        await self._write(batch[middle:])


def _deliver(batch: Sequence[Pending], receipts: Sequence[Receipt]) -> None:
    """Resolve each request to its own receipts."""
    start = 0
    for pending in batch:
        end = start + len(pending.part)
        pending.set_result(receipts[start:end])
        start = end
