"""The worker: claims jobs, runs them side by side, keeps its leases, and drains when asked to."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Final

from onceward.claim import Leases, batch_size
from onceward.clock import Clock
from onceward.errors import StoreError
from onceward.handle import GRACE_SECONDS, Handling
from onceward.model import Job, Lease
from onceward.ports import Queue
from onceward.redact import redact
from onceward.settings import Settings
from onceward.settle import locate

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
        handling: Handling,
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
        self._ready: deque[tuple[Lease, Job]] = deque()
        self._running: dict[asyncio.Task[None], tuple[Lease, Job]] = {}
        self._wake = asyncio.Event()
        self._stopping = False
        self._alone = False
        self._solo_turn = False
        self._mean_seconds = 0.01

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
        return len(self._ready) + len(self._running)

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
            enough = 0 if must_wait else max(size // 2, self._settings.workers - 1)
            if self._in_hand > enough:
                return self._settings.poll_seconds
            try:
                pause = await self._claim(size - self._in_hand)
            except StoreError as error:
                _log.warning("no jobs could be claimed: %s", redact(str(error)))
                return _STORE_PAUSE_SECONDS
            if pause is not None:
                return pause
        return 0.0

    async def _claim(self, limit: int) -> float | None:
        """Claim once, a solo job in its turn; answers how long to pause when no more is due."""
        solo = self._solo_turn
        claim = await self._leases.claim(limit, solo=solo)
        self._solo_turn = claim.solo_waiting and not solo
        self._alone = claim.lease is not None and solo
        if claim.lease is not None:
            self._ready.extend((claim.lease, job) for job in claim.lease.jobs)
            self._start()
        took_all = claim.lease is None or len(claim.lease.jobs) < limit
        if solo or self._solo_turn or not took_all:
            return None
        if claim.next_due_seconds is None:
            return self._settings.poll_seconds
        return min(claim.next_due_seconds, self._settings.poll_seconds)

    def _start(self) -> None:
        while self._ready and len(self._running) < self._settings.workers:
            lease, job = self._ready.popleft()
            task = asyncio.create_task(self._run(lease, job))
            self._running[task] = (lease, job)
            task.add_done_callback(self._finished)

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
        seconds = self._clock.monotonic() - started
        self._mean_seconds += _MEAN_WEIGHT * (seconds - self._mean_seconds)

    async def _abandon(self, lease: Lease) -> None:
        """Let a lease expire of which a job could not be settled, and give back its other jobs."""
        unstarted = [pair for pair in self._ready if pair[0] is lease]
        self._ready = deque(pair for pair in self._ready if pair[0] is not lease)
        await self._give_back(unstarted)
        self._leases.abandon(lease)

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a job could not be handled: %s", locate(error))
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
        self._ready = deque(pair for pair in self._ready if pair[0].token not in lost)
        for task, (lease, _) in self._running.items():
            if lease.token in lost:
                task.cancel()

    async def _drain(self) -> None:
        unstarted, self._ready = list(self._ready), deque()
        await self._give_back(unstarted)
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.drain_seconds)
        broken_off = dict(self._running)
        for task in broken_off:
            task.cancel()
        if broken_off:
            await asyncio.wait(broken_off, timeout=2 * GRACE_SECONDS)
        await self._give_back(broken_off.values())
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._leases.end()

    async def _give_back(self, pairs: Iterable[tuple[Lease, Job]]) -> None:
        jobs: dict[str, list[int]] = defaultdict(list)
        leases: dict[str, Lease] = {}
        for lease, job in pairs:
            leases[lease.token] = lease
            jobs[lease.token].append(job.id)
        for token, lease in leases.items():
            try:
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._leases.give_back(lease, jobs[token])
            except (StoreError, TimeoutError) as error:
                _log.warning("jobs could not be given back: %s", redact(str(error)))
