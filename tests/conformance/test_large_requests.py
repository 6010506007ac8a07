"""Requests with more events than one transaction takes: written in parts, answered as one."""

import asyncio

import pytest

from onceward.errors import LedgerUnavailable, RequestRefused
from onceward.model.events import DuplicateBody, Outcome
from onceward.ports import BatchGroup, Store
from onceward.receive.recorder import MAX_BATCH_BYTES, Recorder
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import EVERYTHING, arrival, arrivals, checked
from tests.ledger_spy import Spy, errors_of, ids


@pytest.fixture
def spy(store: Store) -> Spy:
    return Spy(store)


def _names(spy: Spy) -> list[str]:
    """Return the events of each batch, as ranges of their ids."""
    ends = [(batch[0].event_id, batch[-1].event_id) for batch in spy.batches]
    return [first if first == last else f"{first}-{last}" for first, last in ends]


async def test_a_large_request_is_written_in_parts_and_others_have_turns_between(
    spy: Spy, store: Store
) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=10), SystemClock())
    spy.unblocked.clear()
    large = recorder.submit(arrivals(25, prefix="a"))
    await asyncio.sleep(0)  # its first part begins
    other = recorder.submit([arrival("other")])
    answered_after: list[int] = []
    for pending in (large, other):
        pending.add_done_callback(lambda _: answered_after.append(len(spy.batches)))
    spy.unblocked.set()
    await recorder.close()
    assert _names(spy) == ["a_0-a_9", "other", "a_10-a_19", "a_20-a_24"]
    assert answered_after == [3, 4], "the large request is answered once all of it is durable"
    receipts = large.result()
    assert {receipt.outcome for receipt in receipts} == {Outcome.RECORDED}
    rows = {int(item.id): item.event_id for item in await store.events(EVERYTHING)}
    assert [rows[receipt.event] for receipt in receipts] == [f"a_{n}" for n in range(25)]


async def test_parts_are_bounded_in_bytes_and_count_the_headers_of_each_event(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    large = bytes(MAX_BATCH_BYTES // 4)
    events = [it._replace(body=large) for it in arrivals(7)]
    assert len(await recorder.submit(events)) == 7
    assert spy.sizes == [3, 3, 1]


async def test_an_id_that_a_request_repeats_in_another_part_is_a_duplicate_or_a_conflict(
    spy: Spy,
) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=2), SystemClock())
    a, b = arrivals(2)
    receipts = await recorder.submit([a, b, a, arrival("evt_1", body=b"[]"), arrival("new")])
    assert [receipt.outcome for receipt in receipts] == [
        *(Outcome.RECORDED, Outcome.RECORDED),
        *(Outcome.DUPLICATE, Outcome.CONFLICT, Outcome.RECORDED),
    ]
    assert [receipt.event for receipt in receipts[:2]] == [
        receipt.event for receipt in receipts[2:4]
    ]


async def test_a_body_that_a_request_repeats_in_another_part_is_held(
    spy: Spy, store: Store
) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=1), SystemClock())
    batch = [checked(event_id, DuplicateBody.HELD) for event_id in ("a", "b")]
    for outcome in (Outcome.RECORDED, Outcome.DUPLICATE):
        receipts = await recorder.submit(batch)
        assert [receipt.outcome for receipt in receipts] == [outcome] * 2
    items = {item.event_id: item.duplicate_body_of for item in await store.events(EVERYTHING)}
    assert items == {"a": None, "b": str(receipts[0].event)}


async def test_a_request_whose_second_part_fails_is_refused_and_complete_after_a_retry(
    spy: Spy, store: Store, raw_db: RawDatabase
) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=10, max_pending_events=25), SystemClock())
    raw_db.reject_inserts_of("evt_13")
    with pytest.raises(LedgerUnavailable) as refused:
        await recorder.submit(arrivals(25))
    assert refused.value.code == "not_recorded"
    assert await ids(store) == {f"evt_{number}" for number in range(10)}
    raw_db.accept_inserts()
    receipts = await recorder.submit(arrivals(25))  # nothing of the first try is pending
    outcomes = [receipt.outcome for receipt in receipts]
    assert outcomes == [Outcome.DUPLICATE] * 10 + [Outcome.RECORDED] * 15


async def test_a_request_that_expires_between_its_parts_is_written_to_its_end(
    spy: Spy, store: Store
) -> None:
    settings = Settings(max_batch_events=10, commit_timeout_seconds=0.1)
    recorder = Recorder(spy, settings, SystemClock())
    spy.unblocked.clear()
    requests = [recorder.submit(arrivals(25, prefix=prefix)) for prefix in ("begun", "waiting")]
    assert len(await errors_of(requests)) == 2
    spy.unblocked.set()
    written = {f"begun_{number}" for number in range(25)}

    async def is_written() -> bool:
        return await ids(store) == written

    await eventually_async(is_written, "all parts are written")
    patient = Recorder(spy, Settings(max_batch_events=10), SystemClock())
    again = await patient.submit(arrivals(25, prefix="begun"))
    assert await ids(store) == written
    assert {receipt.outcome for receipt in again} == {Outcome.DUPLICATE}


async def test_a_request_in_parts_gets_a_503_when_the_recorder_closes(spy: Spy) -> None:
    recorder = Recorder(
        spy, Settings(max_batch_events=10, commit_timeout_seconds=0.2), SystemClock()
    )
    spy.unblocked.clear()
    request = recorder.submit(arrivals(20))
    await asyncio.wait_for(spy.began.wait(), 5)
    spy.began.clear()
    spy.unblocked.set()  # for the first part alone
    spy.unblocked.clear()
    await asyncio.wait_for(spy.began.wait(), 5)
    await recorder.close()
    with pytest.raises(LedgerUnavailable, match="slow"):
        request.result()
    spy.unblocked.set()


async def test_each_part_has_the_time_of_a_commit(spy: Spy) -> None:
    """A retry of the sender takes as many commits: the request would never be acknowledged."""
    settings = Settings(max_batch_events=10, commit_timeout_seconds=1.0)
    recorder = Recorder(spy, settings, SystemClock())
    spy.delay_seconds = 0.4
    assert len(await recorder.submit(arrivals(35))) == 35
    assert spy.sizes == [10, 10, 10, 5]


async def test_what_is_written_of_a_large_request_no_longer_waits(spy: Spy) -> None:
    settings = Settings(max_batch_events=2, max_pending_events=4)
    recorder = Recorder(spy, settings, SystemClock())
    large = recorder.submit(arrivals(6, prefix="alone"))  # it could never wait beside others
    with pytest.raises(RequestRefused, match="Too many"):
        recorder.submit([arrival("too early")])
    await large
    spy.unblocked.clear()
    spy.began.clear()
    large = recorder.submit(arrivals(4, prefix="large"))
    with pytest.raises(RequestRefused, match="Too many"):
        recorder.submit([arrival("too early")])
    await asyncio.wait_for(spy.began.wait(), 5)
    spy.began.clear()
    spy.unblocked.set()  # for its first part alone
    spy.unblocked.clear()
    await asyncio.wait_for(spy.began.wait(), 5)
    other = recorder.submit(arrivals(2, prefix="other"))
    assert not large.done()
    spy.unblocked.set()
    await asyncio.gather(large, other)


async def test_requests_share_a_batch_within_its_bytes_and_none_with_a_part(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.unblocked.clear()
    first = recorder.submit([arrival("first")])
    await asyncio.sleep(0)  # its write begins
    large = bytes(MAX_BATCH_BYTES * 2 // 5)
    singles = [recorder.submit([it._replace(body=large)]) for it in arrivals(3, prefix="s")]
    parts = recorder.submit([it._replace(body=large) for it in arrivals(3, prefix="p")])
    spy.unblocked.set()
    assert [len(each) for each in await asyncio.gather(first, *singles, parts)] == [1, 1, 1, 1, 3]
    assert _names(spy) == ["first", "s_0-s_1", "s_2", "p_0-p_1", "p_2"]


async def test_the_last_part_shares_its_batch_and_each_request_gets_its_own_receipts(
    spy: Spy, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"old": BatchGroup.DUPLICATES}  # also in SQLite, which has one group
    monkeypatch.setattr(spy, "batch_group", lambda it: groups.get(it.event_id, BatchGroup.NEW))
    recorder = Recorder(spy, Settings(max_batch_events=10), SystemClock())
    await recorder.submit([arrival("old")])
    spy.unblocked.clear()
    large = recorder.submit(arrivals(15, prefix="a"))
    await asyncio.sleep(0)  # its first part begins
    again = recorder.submit([arrival("old")])
    spy.began.clear()
    spy.unblocked.set()  # for the first part alone
    spy.unblocked.clear()
    await asyncio.wait_for(spy.began.wait(), 5)  # the turn of duplicates: the last part waits
    other = recorder.submit([arrival("other")])
    spy.unblocked.set()
    results = await asyncio.gather(large, again, other)
    assert _names(spy) == ["old", "a_0-a_9", "old", "a_10-other"]
    rows = {int(item.id): item.event_id for item in await store.events(EVERYTHING)}
    assert [[rows[receipt.event] for receipt in receipts] for receipts in results] == [
        [f"a_{number}" for number in range(15)],
        ["old"],
        ["other"],
    ]


async def test_an_event_beyond_the_bytes_of_a_part_is_a_part_and_a_full_part_is_not_cut(
    spy: Spy,
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    small = arrival("small")
    full = arrival("full", body=bytes(MAX_BATCH_BYTES - 2 * small.size + len(small.body)))
    large = arrival("large", body=bytes(MAX_BATCH_BYTES))
    assert small.size + full.size == MAX_BATCH_BYTES
    assert len(await recorder.submit([large, small, full, arrival("last")])) == 4
    assert _names(spy) == ["large", "small-full", "last"]
