"""An effect is marked once for each key in the whole inbox, in the handler's transaction."""

import asyncio
from typing import Any, Final

import pytest

from onceward.errors import PermanentError
from onceward.model.effects import EffectStatus
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import (
    EVERYTHING,
    Work,
    arrivals,
    lease,
    leased_job,
    working,
)


async def once(work: Work, key: str = "credit:1", *, job: int = 1) -> bool:
    return await work.effects(job).once(key)


async def test_only_the_first_mark_in_a_transaction_returns_true(store: Store) -> None:
    async with working(store) as work:
        assert [await once(work) for _ in range(3)] == [True, False, False]
        assert await once(work, "credit:2")


async def test_only_the_first_mark_over_all_jobs_returns_true(store: Store) -> None:
    await store.record(arrivals(3))
    claimed = await lease(store)
    firsts = []
    for job in claimed.jobs:
        async with working(store) as work:
            firsts.append(await once(work, job=job.id))
            await work.unit.settle(claimed.token, job.id)
    assert firsts == [True, False, False]


async def test_a_rolled_back_effect_is_not_marked(store: Store) -> None:
    for expected in (True, True):
        async with working(store) as work:
            assert await once(work) is expected
    assert await store.effects(EVERYTHING) == []


async def test_a_worker_that_lost_its_lease_marks_no_effect(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    raw_db.expire_leases()
    new = await lease(store, solo=True)
    async with working(store) as zombie:
        assert await once(zombie, job=job.id)
        with pytest.raises(Exception, match="lease"):
            await zombie.unit.settle(token, job.id)
    async with working(store) as work:
        assert await once(work, job=job.id)
        assert await work.unit.settle(new.token, job.id)


async def test_an_effect_is_listed_with_its_job_and_reference(store: Store) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.effects(job.id).once("mail:é", reference="cus_1")
        await work.unit.settle(token, job.id)
    (effect,) = await store.effects(EVERYTHING)
    assert (effect.idempotency_key, effect.job_id) == ("mail:é", str(job.id))
    assert (effect.reference, effect.status) == ("cus_1", EffectStatus.SUCCEEDED)


async def test_similar_keys_are_different_effects(store: Store) -> None:
    keys = ["a", "A", "a ", "á", "a\u0301", "a%", "a_"]
    async with working(store) as work:
        assert all([await once(work, key) for key in keys])


UNUSABLE_KEYS: Final[dict[Any, str]] = {
    "": "empty",
    "a\0b": "NUL",
    "\ud800": "Unicode",
    "x" * 256: "256 bytes",
    "é" * 128: "256 bytes",
    None: "the key is None; pass a text such as",
    7: "the key is an int; pass a text such as",
}


async def test_an_unusable_key_is_refused_with_the_reason(
    store: Store, subtests: pytest.Subtests
) -> None:
    for key, fault in UNUSABLE_KEYS.items():
        with subtests.test(ascii(key)[:12]):
            async with working(store) as work:
                with pytest.raises(PermanentError, match=fault):
                    await once(work, key)
            assert await store.effects(EVERYTHING) == []


async def test_an_unusable_reference_is_refused_with_the_reason(store: Store) -> None:
    async with working(store) as work:
        with pytest.raises(PermanentError, match=r"reference .* 300 bytes"):
            await work.effects(1).once("key", reference="x" * 300)


async def test_a_key_of_maximum_length_is_accepted(store: Store) -> None:
    async with working(store) as work:
        assert await once(work, "x" * 255)


@pytest.mark.parametrize("first_commits", [True, False])
async def test_one_of_two_concurrent_transactions_marks_a_key(
    store: Store, *, first_commits: bool
) -> None:
    async def second() -> bool:
        async with working(store) as work:
            is_first = await once(work, job=2)
            await work.unit.commit()
            return is_first

    async with working(store) as work:
        assert await once(work, job=1)
        racing = asyncio.create_task(second())
        await asyncio.sleep(0.1)
        assert not racing.done()
        if first_commits:
            await work.unit.commit()
    assert await asyncio.wait_for(racing, 2.0) is not first_commits
    assert [effect.job_id for effect in await store.effects(EVERYTHING)] == (
        ["1"] if first_commits else ["2"]
    )


async def test_each_key_is_marked_once_under_concurrency(store: Store) -> None:
    async def work_on(job: int) -> bool:
        async with working(store) as work:
            is_first = await once(work, f"key:{job % 3}", job=job)
            await work.unit.commit()
            return is_first

    firsts = await asyncio.gather(*(work_on(job) for job in range(30)))
    assert sum(firsts) == len(await store.effects(EVERYTHING)) == 3
