"""The leases of a worker: claiming, renewing, releasing and ending them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import NamedTuple

from onceward.model.jobs import Claim, Job, Lease
from onceward.ports import Queue


class LeasedJob(NamedTuple):
    """A job and the lease under which it is settled."""

    lease: Lease
    job: Job


class Leases:
    """The leases that one worker holds."""

    def __init__(
        self, queue: Queue, *, worker: str, handlers: Sequence[str], lease_seconds: float
    ) -> None:
        self._queue = queue
        self._worker = worker
        self._handlers = handlers
        self._lease_seconds = lease_seconds
        self._unfinished: dict[str, set[int]] = {}
        self._ended: list[str] = []

    async def claim(self, limit: int, *, solo: bool, without: Collection[str] = ()) -> Claim:
        """Claim up to `limit` jobs, and end the leases whose jobs have all finished.

        Jobs of the handlers `without` stay queued.
        """
        ended, self._ended = self._ended, []
        token = uuid.uuid4().hex
        try:
            claim = await self._queue.claim(
                token=token,
                worker=self._worker,
                handlers=[name for name in self._handlers if name not in without]
                if without
                else self._handlers,
                limit=limit,
                solo=solo,
                lease_seconds=self._lease_seconds,
                ended=ended,
            )
        except BaseException:
            # The claim may have committed. No job runs under its token, so end that lease too.
            self._ended += [*ended, token]
            raise
        if claim.lease:
            self._unfinished[claim.lease.token] = {job.id for job in claim.lease.jobs}
        return claim

    def finish(self, lease: Lease, job: int) -> None:
        """Note that a job no longer needs its lease, which ends with the last of its jobs.

        The job is settled, or the database was away. In that case any worker can claim the job when
        the lease ends, and no attempt is counted.
        """
        unfinished = self._unfinished.get(lease.token)
        if unfinished is None:
            return
        unfinished.discard(job)
        if not unfinished:
            del self._unfinished[lease.token]
            self._ended.append(lease.token)

    def holds(self, lease: Lease) -> bool:
        """Return whether the worker still renews a lease: it was neither lost nor ended."""
        return lease.token in self._unfinished

    def abandon(self, lease: Lease) -> None:
        """Stop renewing a lease, so that it expires: one of its jobs may still run."""
        self._unfinished.pop(lease.token, None)

    async def renew(self) -> set[str]:
        """Renew all leases. Return the tokens of those that were lost."""
        tokens = list(self._unfinished)
        if not tokens:
            return set()
        lost = set(tokens) - await self._queue.renew(tokens, self._lease_seconds)
        lost &= self._unfinished.keys()  # a lease that ended meanwhile was not lost
        for token in lost:
            del self._unfinished[token]
        return lost

    async def release(self, lease: Lease, jobs: Sequence[int]) -> None:
        """Release jobs that did not start or were cancelled, for any worker to claim."""
        await self._queue.release(lease.token, jobs)
        for job in jobs:
            self.finish(lease, job)

    async def end(self) -> None:
        """End the leases whose jobs have all finished, without claiming more."""
        ended, self._ended = self._ended, []
        if ended:
            await self._queue.end_leases(ended)
