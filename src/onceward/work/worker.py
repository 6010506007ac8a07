"""The worker: claims jobs, runs them side by side, keeps its leases, and drains when asked to."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Final

from onceward.errors import StoreError
from onceward.model.jobs import Job, Lease
from onceward.ports import Queue
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import locate
from onceward.runtime.redact import redact
from onceward.runtime.timeouts import GRACE_SECONDS
from onceward.settings import Settings
from onceward.work.batching import AdaptiveBatchSize, Held
from onceward.work.leases import Leases, batch_size
from onceward.work.runner import JobRunner

_log = logging.getLogger("onceward.worker")

RENEWALS_A_LEASE: Final = 3
_SHORTEST_PAUSE_SECONDS: Final = 0.02
_STORE_PAUSE_SECONDS: Final = 1.0
_MEAN_WEIGHT: Final = 0.1


class Worker:
    """Runs jobs until it is asked to stop."""

    def __init__(
        self,
        *,
        name: str,
        queue: Queue,
        handling: JobRunner,
        handlers: Sequence[str],
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._handling = handling
        self._settings = settings
        self._clock = clock
        self._leases = Leases(
            queue, worker=name, handlers=handlers, lease_seconds=settings.lease_seconds
        )
        self._ready: deque[Held] = deque()
        self._shareable: deque[Held] = deque()
        self._running: dict[asyncio.Task[None], list[Held]] = {}
        self._share = AdaptiveBatchSize(settings.max_jobs_per_transaction)
        self._turns: set[asyncio.Task[None]] = set()
        self._shared_last = False
        self._caught_up = False
        self._wake = asyncio.Event()
        self._stopping = False
        self._alone = False
        self._solo_turn = False
        self._mean_seconds = 0.01
        self._away_since: float | None = None

    async def run(self) -> None:
        """Work until `stop` is called, then drain."""
        helpers = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._keep_leases()),
        ]
        try:
            while not self._stopping:
                await self._pause(await self._fill())
            await self._drain()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    def stop(self) -> None:
        """Ask it to give back what has not started and to let the rest end."""
        self._stopping = True
        self._wake.set()

    @property
    def _in_hand(self) -> int:
        running = sum(len(pairs) for pairs in self._running.values())
        return len(self._ready) + len(self._shareable) + running

    @property
    def _next_turn_waits(self) -> bool:
        """Whether there is something to do when a turn ends: by then, more may be due."""
        return bool(self._turns and self._shareable)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, _SHORTEST_PAUSE_SECONDS)):
                await self._wake.wait()
        self._wake.clear()

    async def _fill(self) -> float:
        """Claim until there is enough in hand or nothing is due; answers how long to pause."""
        while not self._stopping:
            size = batch_size(self._settings.workers, self._mean_seconds)
            must_wait = self._alone or self._solo_turn
            ahead = min(self._share.size, size // 2)
            enough = 0 if must_wait else max(ahead, self._settings.workers - 1)
            if self._in_hand > enough or (self._caught_up and self._next_turn_waits):
                return self._settings.poll_seconds
            try:
                pause = await self._claim(size - self._in_hand)
            except StoreError as error:
                self._note_outage(error)
                return _STORE_PAUSE_SECONDS
            self._note_recovery()
            if pause is not None:
                return pause
        return 0.0

    def _note_outage(self, error: StoreError) -> None:
        """Tell of an outage when it begins; it may last for hours."""
        if self._away_since is None:
            self._away_since = self._clock.monotonic()
            _log.warning("no jobs can be claimed, trying every second: %s", redact(str(error)))

    def _note_recovery(self) -> None:
        if self._away_since is not None:
            seconds = self._clock.monotonic() - self._away_since
            _log.warning("jobs can be claimed again, after %.0f s", seconds)
            self._away_since = None

    async def _claim(self, limit: int) -> float | None:
        """Claim once, a solo job in its turn; answers how long to pause when no more is due."""
        solo = self._solo_turn
        claim = await self._leases.claim(limit, solo=solo)
        self._solo_turn = claim.solo_waiting and not solo
        self._alone = claim.lease is not None and solo
        if claim.lease is not None:
            can_share = not solo and self._settings.max_jobs_per_transaction > 1
            for job in claim.lease.jobs:
                may_share = can_share and self._handling.may_share(job)
                (self._shareable if may_share else self._ready).append((claim.lease, job))
            self._start()
        self._caught_up = claim.lease is None or len(claim.lease.jobs) < limit
        if solo or self._solo_turn or not self._caught_up:
            return None
        if claim.next_due_seconds is None:
            return self._settings.poll_seconds
        return min(claim.next_due_seconds, self._settings.poll_seconds)

    def _start(self) -> None:
        """Fill the places that are free: some with jobs that share, others with one job each."""
        while len(self._running) < self._settings.workers:
            may_share = self._shareable and len(self._turns) < self._queue.max_shared_transactions
            if may_share and not (self._ready and self._shared_last):  # in a single place, in turns
                count = min(self._share.size, len(self._shareable))
                pairs = [self._shareable.popleft() for _ in range(count)]
                self._shared_last = True
                task = asyncio.create_task(self._run_together(pairs))
                self._turns.add(task)
            elif self._ready:
                pairs = [self._ready.popleft()]
                self._shared_last = False
                task = asyncio.create_task(self._run(*pairs[0]))
            else:
                return
            self._running[task] = pairs
            task.add_done_callback(self._finished)

    async def _run_together(self, pairs: Sequence[Held]) -> None:
        started = self._clock.monotonic()
        turn = await self._handling.run_together(pairs)
        for lease, job in turn.settled:
            self._leases.settled(lease, job.id)
        if turn.settled:
            self._share.went_well(len(turn.settled))
            self._note_seconds((self._clock.monotonic() - started) / len(turn.settled))
        else:
            self._share.broke()
        self._ready.extendleft(reversed(turn.apart))
        self._shareable.extendleft(reversed(turn.left))

    async def _run(self, lease: Lease, job: Job) -> None:
        started = self._clock.monotonic()
        is_settled = False
        try:
            is_settled = await self._handling.run(lease.token, job)
        finally:
            if is_settled:
                self._leases.settled(lease, job.id)
            elif not self._stopping:  # a drain gives back what it breaks off
                await self._abandon(lease)
        self._note_seconds(self._clock.monotonic() - started)

    def _note_seconds(self, seconds: float) -> None:
        self._mean_seconds += _MEAN_WEIGHT * (seconds - self._mean_seconds)

    async def _abandon(self, lease: Lease) -> None:
        """Let a lease expire of which a job could not be settled, and give back its other jobs."""
        await self._release(self._take_back(lambda held: held is lease))
        self._leases.abandon(lease)

    def _finished(self, task: asyncio.Task[None]) -> None:
        pairs = self._running.pop(task)
        self._turns.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a job could not be handled: %s", locate(error))
            for lease, _ in pairs:
                self._leases.abandon(lease)
        elif task.cancelled() and not self._stopping:
            # A lease was lost, maybe before anything ran; what is under others is still ours to do.
            ours = [pair for pair in pairs if self._leases.holds(pair[0])]
            self._shareable.extendleft(reversed(ours))
        if not self._stopping:
            self._start()
        self._wake.set()

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self._queue.announcements()) as announcements:
                    async for _ in announcements:
                        self._wake.set()
            except Exception as error:  # noqa: BLE001 - polling goes on meanwhile
                _log.error("announcements are not heard: %s", locate(error))
            await asyncio.sleep(_STORE_PAUSE_SECONDS)

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_seconds / RENEWALS_A_LEASE)
            try:
                self._let_go(await self._leases.renew())
            except StoreError as error:
                _log.warning("leases could not be prolonged: %s", redact(str(error)))
            except Exception as error:  # noqa: BLE001 - without renewals, every lease is lost
                _log.error("leases could not be prolonged: %s", locate(error))

    def _let_go(self, lost: set[str]) -> None:
        """Break off what is no longer ours; it could not be committed anyway."""
        if not lost:
            return
        _log.warning("%d leases were lost; their jobs are broken off", len(lost))
        self._take_back(lambda lease: lease.token in lost)
        for task, pairs in self._running.items():
            if any(lease.token in lost for lease, _ in pairs):
                task.cancel()

    def _take_back(self, concerns: Callable[[Lease], bool]) -> list[Held]:
        """Take out what has not started of the leases concerned."""
        taken = [pair for pair in (*self._ready, *self._shareable) if concerns(pair[0])]
        self._ready = deque(pair for pair in self._ready if not concerns(pair[0]))
        self._shareable = deque(pair for pair in self._shareable if not concerns(pair[0]))
        return taken

    async def _drain(self) -> None:
        await self._release(self._take_back(lambda _: True))
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.drain_seconds)
        await self._release(self._take_back(lambda _: True))  # what a broken turn left
        broken_off = dict(self._running)
        for task in broken_off:
            task.cancel()
        if broken_off:
            await asyncio.wait(broken_off, timeout=2 * GRACE_SECONDS)
        await self._release(pair for pairs in broken_off.values() for pair in pairs)
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._leases.end()

    async def _release(self, pairs: Iterable[Held]) -> None:
        jobs: dict[str, list[int]] = defaultdict(list)
        leases: dict[str, Lease] = {}
        for lease, job in pairs:
            leases[lease.token] = lease
            jobs[lease.token].append(job.id)
        for token, lease in leases.items():
            try:
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._leases.release(lease, jobs[token])
            except (StoreError, TimeoutError) as error:
                _log.warning("jobs could not be given back: %s", redact(str(error)))
