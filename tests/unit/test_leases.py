"""The leases of a worker: which jobs are finished, and which keys may have become free."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest

from onceward.errors import StoreError
from onceward.model.jobs import Claim, ClaimRequest, Job, Lease, Renewal
from onceward.ports import Queue
from onceward.work.claiming.leases import Leases
from tests.scheduling import make_job


class FakeQueue:
    """Leases the given jobs, and keeps the requests that it got."""

    def __init__(self) -> None:
        self.requests: list[ClaimRequest] = []
        self.released: list[int] = []
        self.ended: list[tuple[list[str], list[int]]] = []
        self.next_jobs: tuple[Job, ...] = ()
        self.is_away = False
        self.renewal = Renewal(frozenset())
        self.during_renewal: Callable[[], object] = lambda: None

    async def claim(self, request: ClaimRequest) -> Claim:
        self.requests.append(request)
        if self.is_away:
            raise StoreError("away")
        return Claim(
            Lease(request.token, self.next_jobs), solo_waiting=False, next_due_seconds=None
        )

    async def renew(self, _tokens: Sequence[str], _seconds: float, **_: Any) -> Renewal:
        self.during_renewal()
        return self.renewal

    async def release(self, _token: str, jobs: Sequence[int]) -> None:
        self.released += jobs

    async def end_leases(self, tokens: Sequence[str], settled: Sequence[int]) -> None:
        self.ended.append((list(tokens), list(settled)))


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def leases(queue: FakeQueue) -> Leases:
    return Leases(cast("Queue", queue), worker="w", slots=4, lease_seconds=60.0)


async def claim(leases: Leases, queue: FakeQueue, *jobs: Job) -> Lease:
    queue.next_jobs = jobs
    lease = (await leases.claim({"single": 9}, 9, solo=False)).lease
    assert lease is not None
    return lease


async def test_a_claim_passes_what_the_worker_wants(leases: Leases, queue: FakeQueue) -> None:
    leases.owner = 7
    await leases.claim({"a": 3, "b": 0}, 3, solo=True)
    (request,) = queue.requests
    assert (request.wanted, request.limit, request.solo) == ({"a": 3, "b": 0}, 3, True)
    assert (request.worker, request.slots, request.lease_seconds, request.owner) == ("w", 4, 60, 7)


async def test_a_lease_ends_with_the_last_of_its_jobs(leases: Leases, queue: FakeQueue) -> None:
    first, second = make_job(), make_job()
    lease = await claim(leases, queue, first, second)
    leases.finish(lease, first)
    assert leases.holds(lease)
    leases.finish(lease, second)
    assert not leases.holds(lease)
    await claim(leases, queue)
    await claim(leases, queue)
    assert [list(request.ended) for request in queue.requests] == [[], [lease.token], []]


async def test_a_settled_job_frees_its_key_until_the_next_claim(
    leases: Leases, queue: FakeQueue
) -> None:
    keyed, other = make_job("keyed", ordering_key="k"), make_job("other")
    lease = await claim(leases, queue, keyed, other)
    leases.finish(lease, other)
    assert leases.freed_handlers == set()
    leases.finish(lease, keyed)
    assert leases.freed_handlers == {"keyed"}
    await claim(leases, queue)
    assert leases.freed_handlers == set()
    assert list(queue.requests[-1].settled) == [keyed.id]


async def test_a_released_job_does_not_free_its_key(leases: Leases, queue: FakeQueue) -> None:
    """The worker gave it back because it has no slot for it: it must not claim it at once."""
    keyed = make_job("keyed", ordering_key="k")
    lease = await claim(leases, queue, keyed)
    await leases.release(lease, [keyed])
    assert queue.released == [keyed.id]
    assert not leases.holds(lease)
    assert leases.freed_handlers == set()


async def test_a_lost_lease_frees_no_key(leases: Leases, queue: FakeQueue) -> None:
    keyed = make_job("keyed", ordering_key="k")
    lease = await claim(leases, queue, keyed)
    revoked = await leases.renew()
    assert set(revoked.tokens) == {lease.token}
    leases.finish(lease, keyed)
    assert leases.freed_handlers == set()


async def test_a_failed_claim_is_repeated_with_the_same_news_and_its_own_token(
    leases: Leases, queue: FakeQueue
) -> None:
    keyed = make_job("keyed", ordering_key="k")
    lease = await claim(leases, queue, keyed)
    leases.finish(lease, keyed)
    queue.is_away = True
    with pytest.raises(StoreError):
        await claim(leases, queue)
    assert leases.freed_handlers == {"keyed"}
    queue.is_away = False
    await claim(leases, queue)
    _, failed, repeated = queue.requests
    assert list(repeated.ended) == [lease.token, failed.token]
    assert list(repeated.settled) == [keyed.id]


async def test_a_lease_that_ends_during_its_renewal_is_not_lost(
    leases: Leases, queue: FakeQueue
) -> None:
    job = make_job()
    lease = await claim(leases, queue, job)
    queue.during_renewal = partial(leases.finish, lease, job)
    assert set((await leases.renew()).tokens) == set()


async def test_ended_leases_are_reported_once_at_the_end(leases: Leases, queue: FakeQueue) -> None:
    keyed = make_job("keyed", ordering_key="k")
    lease = await claim(leases, queue, keyed)
    leases.finish(lease, keyed)
    await leases.end()
    await leases.end()
    assert queue.ended == [([lease.token], [keyed.id])]
