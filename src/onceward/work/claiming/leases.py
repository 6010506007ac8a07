"""The leases of a worker: claiming, renewing, releasing and ending them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onceward.model.jobs import Claim, ClaimRequest, Job, Lease
from onceward.ports import Queue


class LeasedJob(NamedTuple):
    """A job and the lease under which it is settled."""

    lease: Lease
    job: Job


def ids_by_lease(jobs: Iterable[LeasedJob]) -> dict[str, list[int]]:
    """Return the ids of jobs by the tokens of their leases."""
    ids: dict[str, list[int]] = defaultdict(list)
    for lease, job in jobs:
        ids[lease.token].append(job.id)
    return ids


@dataclass(frozen=True, slots=True)
class Revoked:
    """The leases that a worker lost, and the jobs that an operator cancelled."""

    tokens: Collection[str]
    jobs: Collection[int] = ()

    def affects(self, leased: LeasedJob) -> bool:
        """Return whether a job may no longer run."""
        return leased.lease.token in self.tokens or leased.job.id in self.jobs


class Leases:
    """The leases that one worker holds."""

    def __init__(self, queue: Queue, *, worker: str, slots: int, lease_seconds: float) -> None:
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._lease_seconds = lease_seconds
        self._unfinished: dict[str, set[int]] = {}
        self._ended: list[str] = []
        self._settled: list[Job] = []
        """Jobs with an ordering key that ended: the next claim wakes the next ones."""
        self.owner = 0
        """The number that stands for the worker, or 0 while leases only expire."""

    @property
    def has_ended(self) -> bool:
        """Whether the next claim ends a lease."""
        return bool(self._ended)

    @property
    def freed_handlers(self) -> set[str]:
        """The handlers of which a key may have become free since the last claim."""
        return {job.handler for job in self._settled}

    async def claim(
        self, wanted: Mapping[str, int], limit: int, *, solo: bool, looks_for_lost: bool = True
    ) -> Claim:
        """Claim up to `limit` jobs, and end the leases whose jobs have all finished.

        Reclaim lost leases of any worker if it `looks_for_lost` ones.
        """
        ended, self._ended = self._ended, []
        settled, self._settled = self._settled, []
        token = uuid.uuid4().hex
        request = ClaimRequest(
            token=token,
            worker=self._worker,
            owner=self.owner,
            wanted=wanted,
            limit=limit,
            solo=solo,
            slots=self._slots,
            lease_seconds=self._lease_seconds,
            ended=ended,
            settled=[job.id for job in settled],
            looks_for_lost=looks_for_lost,
        )
        try:
            claim = await self._queue.claim(request)
        except BaseException:
            # The claim may have committed. No job runs under its token, so end that lease too.
            self._ended += [*ended, token]
            self._settled += settled
            raise
        if claim.lease:
            self._unfinished[claim.lease.token] = {job.id for job in claim.lease.jobs}
        return claim

    def finish(self, lease: Lease, job: Job) -> None:
        """Note that a job no longer needs its lease, which ends with the last of its jobs.

        The job is settled, or the database was away. In that case any worker can claim the job when
        the lease ends, and no attempt is counted.
        """
        if job.ordering_key is not None and self.holds(lease):
            self._settled.append(job)
        self._drop(lease, job)

    def _drop(self, lease: Lease, job: Job) -> None:
        unfinished = self._unfinished.get(lease.token)
        if unfinished is None:
            return
        unfinished.discard(job.id)
        if not unfinished:
            del self._unfinished[lease.token]
            self._ended.append(lease.token)

    def holds(self, lease: Lease) -> bool:
        """Return whether the worker still renews a lease: it was neither lost nor ended."""
        return lease.token in self._unfinished

    def abandon(self, lease: Lease) -> None:
        """Stop renewing a lease, so that it expires: one of its jobs may still run."""
        self._unfinished.pop(lease.token, None)

    async def renew(self) -> Revoked:
        """Renew all leases. Return those that were lost, and the jobs that were cancelled."""
        tokens = list(self._unfinished)
        if not tokens:
            return Revoked(())
        jobs = [job for unfinished in self._unfinished.values() for job in unfinished]
        renewal = await self._queue.renew(
            tokens, self._lease_seconds, owner=self.owner, unfinished=jobs
        )
        lost = frozenset(tokens) - renewal.held
        lost &= self._unfinished.keys()  # a lease that ended meanwhile was not lost
        for token in lost:
            del self._unfinished[token]
        return Revoked(lost, renewal.cancelled)

    async def release(self, lease: Lease, jobs: Sequence[Job]) -> None:
        """Release jobs that did not start or were cancelled, for any worker to claim.

        A released job is still the first of its key: no other job of the key may run.
        """
        await self._queue.release(lease.token, [job.id for job in jobs])
        for job in jobs:
            self._drop(lease, job)

    async def end(self) -> None:
        """End the leases whose jobs have all finished, without claiming more."""
        ended, self._ended = self._ended, []
        settled, self._settled = self._settled, []
        if ended or settled:
            await self._queue.end_leases(ended, [job.id for job in settled])
