"""Leases: taking a batch of jobs, keeping it alive, and knowing when it is over or lost."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from onceward.model.jobs import Claim, Lease
from onceward.ports import Queue


class Leases:
    """The leases of one worker."""

    def __init__(
        self, queue: Queue, *, worker: str, handlers: Sequence[str], lease_seconds: float
    ) -> None:
        self._queue = queue
        self._worker = worker
        self._handlers = handlers
        self._lease_seconds = lease_seconds
        self._unsettled: dict[str, set[int]] = {}
        self._ended: list[str] = []

    async def claim(self, limit: int, *, solo: bool) -> Claim:
        """Ask for work, and say on the way which leases are over."""
        ended, self._ended = self._ended, []
        token = uuid.uuid4().hex
        try:
            claim = await self._queue.claim(
                token=token,
                worker=self._worker,
                handlers=self._handlers,
                limit=limit,
                solo=solo,
                lease_seconds=self._lease_seconds,
                ended=ended,
            )
        except BaseException:
            # It may have been leased all the same; nobody will run it under this token.
            self._ended += [*ended, token]
            raise
        if claim.lease:
            self._unsettled[claim.lease.token] = {job.id for job in claim.lease.jobs}
        return claim

    def settled(self, lease: Lease, job: int) -> None:
        """A job of a lease is over; the lease is, when all of its jobs are."""
        unsettled = self._unsettled.get(lease.token)
        if unsettled is None:
            return
        unsettled.discard(job)
        if not unsettled:
            del self._unsettled[lease.token]
            self._ended.append(lease.token)

    def holds(self, lease: Lease) -> bool:
        """Whether a lease is prolonged: it was neither lost nor is it over."""
        return lease.token in self._unsettled

    def abandon(self, lease: Lease) -> None:
        """Stop prolonging a lease: one of its jobs could not be settled, so let it expire."""
        self._unsettled.pop(lease.token, None)

    async def renew(self) -> set[str]:
        """Prolong what is held; answers with what was lost."""
        held = list(self._unsettled)
        if not held:
            return set()
        lost = set(held) - await self._queue.renew(held, self._lease_seconds)
        lost &= self._unsettled.keys()  # settled meanwhile is not lost
        for token in lost:
            del self._unsettled[token]
        return lost

    async def release(self, lease: Lease, jobs: Sequence[int]) -> None:
        """Let go of jobs that were not started, or whose run was broken off."""
        await self._queue.release(lease.token, jobs)
        for job in jobs:
            self.settled(lease, job)

    async def end(self) -> None:
        """Forget the leases that are over."""
        ended, self._ended = self._ended, []
        await self._queue.end_leases(ended)
