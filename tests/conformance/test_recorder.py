"""Deliveries that wait together are written together, and what waits is bounded."""

import asyncio
from collections.abc import Sequence

import pytest

from onceward.errors import LedgerUnavailable, RequestRefused, StoreUnavailable
from onceward.http.errors import to_http_error
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.ports import BatchGroup, Store
from onceward.receive.pending import Pending
from onceward.receive.recorder import SLOW_WRITE_SECONDS, Recorder
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from support.database import RawDatabase
from tests.factories import EVERYTHING, arrival, arrivals, opened


class Spy:
    """A real ledger that notes what it is asked to write, and waits or fails when told to."""

    def __init__(self, store: Store, *, max_writers: int = 1) -> None:
        self.max_writers = max_writers
        self.batches: list[list[Arrival]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.failing: Exception | None = None
        self._store = store

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]

    def batch_group(self, arrival: Arrival) -> BatchGroup:
        return self._store.batch_group(arrival)

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        self.batches.append(list(arrivals))
        await self.open.wait()
        if self.failing is not None:
            raise self.failing
        return await self._store.record(arrivals)


@pytest.fixture
def spy(store: Store) -> Spy:
    return Spy(store)


async def refusals(answers: Sequence[Pending]) -> list[RequestRefused]:
    results = await asyncio.gather(*answers, return_exceptions=True)
    return [result for result in results if isinstance(result, RequestRefused)]


async def ids(store: Store) -> set[str]:
    return {item.event_id for item in await store.events(EVERYTHING)}


async def test_a_lone_delivery_is_written_at_once(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    (receipt,) = await asyncio.wait_for(recorder.submit([arrival()]), 1.0)
    assert receipt.outcome is Outcome.RECORDED
    assert spy.sizes == [1]
    await recorder.close()


async def test_a_delivery_right_behind_another_is_not_forgotten(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    for number in range(5):  # each in the very moment in which the one before is answered
        await asyncio.wait_for(recorder.submit([arrival(f"evt_{number}")]), 1.0)
    assert sum(spy.sizes) == 5
    await recorder.close()


async def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.failing = StoreUnavailable("away")
    for number in range(3):
        with pytest.raises(RequestRefused):
            await recorder.submit([arrival(f"evt_{number}")])
    spy.failing = None
    for number in range(2):
        await recorder.submit([arrival(f"evt_{number}")])
    assert [record.getMessage() for record in caplog.records] == [
        "the ledger cannot be written, senders are asked to retry: away",
        "the ledger can be written again; 3 were asked to retry",
    ]


async def test_what_arrives_during_a_write_forms_the_next_batch(spy: Spy, store: Store) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=40), SystemClock())
    spy.open.clear()
    answers = [recorder.submit([arrival("first")])]
    await asyncio.sleep(0)  # the first one's write begins
    answers += [recorder.submit([it]) for it in arrivals(100)]
    spy.open.set()
    events = [receipt.event for (receipt,) in await asyncio.gather(*answers)]
    assert spy.sizes == [1, 40, 40, 20]
    assert events == sorted(events)
    assert len(await ids(store)) == 101


async def test_two_hundred_requests_at_once_take_few_transactions(spy: Spy, store: Store) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    receipts = await asyncio.gather(*(recorder.submit([arrival()]) for _ in range(200)))
    assert sum(receipt.outcome is Outcome.RECORDED for (receipt,) in receipts) == 1
    assert spy.sizes == [200]


async def test_each_lane_writes_a_batch_of_its_own(store: Store) -> None:
    spy = Spy(store, max_writers=2)
    recorder = Recorder(spy, Settings(max_batch_events=5), SystemClock())
    spy.open.clear()
    answers = [recorder.submit([it]) for it in arrivals(20)]
    await asyncio.sleep(0)
    assert spy.sizes == [5, 5]
    spy.open.set()
    await asyncio.gather(*answers)
    assert spy.sizes == [5, 5, 5, 5]
    assert len(await ids(store)) == 20


async def test_what_is_new_and_what_is_known_is_written_in_turn(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        spy = Spy(store)
        recorder = Recorder(spy, Settings(max_batch_events=2), SystemClock())
        await recorder.submit([arrival("k")])
        spy.batches.clear()
        spy.open.clear()
        answers = [recorder.submit([arrival("first")])]
        await asyncio.sleep(0)  # the first one's write begins
        for number in range(4):
            answers += [recorder.submit([arrival(f"n{number}")]), recorder.submit([arrival("k")])]
        spy.open.set()
        await asyncio.gather(*answers)
        kinds = ["".join(it.event_id[0] for it in batch) for batch in spy.batches]
        assert kinds == ["f", "kk", "nn", "kk", "nn"]
        await recorder.close()


async def test_a_batch_that_takes_long_holds_up_nothing_else(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        recorder = Recorder(store, Settings(), SystemClock())
        (first,) = await recorder.submit([arrival("known")])
        with RawDatabase(postgres_url).connection() as connection:
            connection.execute("LOCK onceward.payloads IN EXCLUSIVE MODE")
            new = recorder.submit([arrival("new")])
            await asyncio.sleep(0)  # the write of what is new begins
            (again,) = await asyncio.wait_for(recorder.submit([arrival("known")]), 1)
            assert (again.event, again.outcome) == (first.event, Outcome.DUPLICATE)
            assert not new.done()
        assert (await new)[0].outcome is Outcome.RECORDED
        await recorder.close()


async def test_a_later_batch_that_takes_long_holds_up_nothing_else(store: Store) -> None:
    spy = Spy(store, max_writers=2)
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.open.clear()
    answers = [recorder.submit([arrival("quick")])]
    await asyncio.sleep(0)  # its write begins
    answers.append(recorder.submit([arrival("slow")]))
    await asyncio.sleep(SLOW_WRITE_SECONDS * 0.6)
    spy.open.set()
    await asyncio.sleep(0)  # the first one goes on
    spy.open.clear()
    await answers[0]
    answers.append(recorder.submit([arrival("last")]))
    assert spy.sizes == [1, 1]
    await asyncio.sleep(SLOW_WRITE_SECONDS * 3)
    assert spy.sizes == [1, 1, 1]
    spy.open.set()
    await asyncio.gather(*answers)
    await recorder.close()


async def test_those_who_gave_up_do_not_hide_those_who_wait(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.receive.recorder.SLOW_WRITE_SECONDS", 10)
    async with opened(postgres_url) as store:
        spy = Spy(store)
        recorder = Recorder(spy, Settings(), SystemClock())
        await recorder.submit([arrival("known")])
        spy.open.clear()
        first = recorder.submit([arrival("first")])
        await asyncio.sleep(0)  # its write begins
        recorder.submit([arrival("known")]).set_error(LedgerUnavailable("The sender is gone."))
        last = recorder.submit([arrival("new")])
        spy.open.set()
        (receipt,) = await asyncio.wait_for(last, 1)
        assert receipt.outcome is Outcome.RECORDED
        assert first.done()
        await recorder.close()


async def test_what_came_in_one_request_is_written_and_answered_together(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=10), SystemClock())
    spy.open.clear()
    first = recorder.submit([arrival("first")])
    await asyncio.sleep(0)  # the first one's write begins
    requests = [arrivals(4, prefix="a"), arrivals(7, prefix="b"), arrivals(25, prefix="c"), []]
    answers = [recorder.submit(request) for request in requests]
    spy.open.set()
    every = await asyncio.gather(first, *answers)
    assert [len(receipts) for receipts in every] == [1, 4, 7, 25, 0]
    assert spy.sizes == [1, 4, 7, 25], "a request is never divided, however large"
    again = await recorder.submit([*arrivals(2, prefix="a"), arrival("new")])
    outcomes = [receipt.outcome for receipt in again]
    assert outcomes == [Outcome.DUPLICATE, Outcome.DUPLICATE, Outcome.RECORDED]
    assert [receipt.event for receipt in again[:2]] == [it.event for it in every[1][:2]]


async def test_too_many_that_wait_are_refused_with_503(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(max_pending_events=3), SystemClock())
    spy.open.clear()
    answers = [recorder.submit([it]) for it in arrivals(3)]
    with pytest.raises(RequestRefused) as refused:
        recorder.submit([arrival("one too many")])
    assert refused.value.code == "overloaded"
    assert to_http_error(refused.value).headers == (("retry-after", "2"),)
    spy.open.set()
    await asyncio.gather(*answers)
    assert (await recorder.submit([arrival("later")]))[0].outcome is Outcome.RECORDED


async def test_too_many_bytes_that_wait_are_refused_with_503(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(max_pending_bytes=1024), SystemClock())
    spy.open.clear()
    waiting = recorder.submit([arrival("a", body=b"x" * 1000)])
    with pytest.raises(RequestRefused) as refused:
        recorder.submit([arrival("b", body=b"x" * 25)])
    assert refused.value.code == "overloaded"
    fits = recorder.submit([arrival("c", body=b"x" * 24)])
    spy.open.set()
    await asyncio.gather(waiting, fits)
    await recorder.submit([arrival("d", body=b"x" * 1024)])


async def test_a_ledger_that_hangs_is_answered_for_with_503_and_works_again(
    spy: Spy, store: Store
) -> None:
    recorder = Recorder(spy, Settings(commit_timeout_seconds=0.1), SystemClock())
    spy.open.clear()
    answers = [recorder.submit([arrival("in the write")])]
    await asyncio.sleep(0)
    answers += [recorder.submit([it]) for it in arrivals(5)]
    refused = await asyncio.wait_for(refusals(answers), 1.0)
    assert [it.code for it in refused] == ["slow"] * 6
    spy.open.set()
    (later,) = await recorder.submit([arrival("later")])
    assert later.outcome is Outcome.RECORDED
    # What was being written is there; what only waited was told to come again, and is not.
    assert await ids(store) == {"in the write", "later"}
    assert (await recorder.submit([arrival("in the write")]))[0].outcome is Outcome.DUPLICATE


async def test_a_ledger_that_hangs_holds_no_more_than_it_may(spy: Spy) -> None:
    recorder = Recorder(
        spy, Settings(commit_timeout_seconds=0.5, max_pending_events=4), SystemClock()
    )
    spy.open.clear()
    answers = [recorder.submit([it]) for it in arrivals(4)]
    await refusals(answers)
    with pytest.raises(RequestRefused, match="Too many"):
        recorder.submit([arrival("still too many")])
    spy.open.set()
    await recorder.close()
    await recorder.submit([arrival("later")])


async def test_a_ledger_that_fails_is_answered_for_with_503(spy: Spy, store: Store) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.failing = StoreUnavailable("no route to host")
    (refused,) = await refusals([recorder.submit([arrival()])])
    assert refused.code == "unavailable"
    assert "route" not in refused.message
    spy.failing = None
    assert (await recorder.submit([arrival()]))[0].outcome is Outcome.RECORDED


async def test_an_error_nobody_foresaw_is_answered_for_too(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.failing = ZeroDivisionError("a defect")
    (refused,) = await refusals([recorder.submit([arrival()])])
    assert isinstance(refused, LedgerUnavailable)
    spy.failing = None
    await recorder.submit([arrival()])


async def test_one_that_the_database_refuses_takes_no_other_down(
    spy: Spy, store: Store, raw_db: RawDatabase
) -> None:
    raw_db.reject_inserts_of("evt_13")
    recorder = Recorder(spy, Settings(), SystemClock())
    answers = [recorder.submit([it]) for it in arrivals(50)]
    (refused,) = await refusals(answers)
    assert refused.code == "not_recorded"
    with pytest.raises(RequestRefused) as raised:
        answers[13].result()
    assert raised.value is refused
    others = {answer.result()[0].outcome for answer in answers if answer is not answers[13]}
    assert others == {Outcome.RECORDED}
    assert await ids(store) == {f"evt_{number}" for number in range(50)} - {"evt_13"}


async def test_closing_writes_what_waits(spy: Spy, store: Store) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=10), SystemClock())
    spy.open.clear()
    answers = [recorder.submit([it]) for it in arrivals(35)]
    asyncio.get_running_loop().call_later(0.05, spy.open.set)
    await recorder.close()
    assert all(answer.done() for answer in answers)
    assert len(await ids(store)) == 35


async def test_a_request_that_gave_up_before_its_turn_is_not_written(
    spy: Spy, store: Store
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.open.clear()
    recorder.submit([arrival("a")])
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(recorder.submit([arrival("b")]), 0.01)
    recorder.submit([arrival("c")])
    spy.open.set()
    await recorder.close()
    assert await ids(store) == {"a", "c"}


async def test_the_next_batch_is_on_its_way_before_the_senders_of_the_last_are_told(
    spy: Spy,
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    batches_when_told: list[int] = []
    spy.open.clear()
    first = recorder.submit([arrival("first")])
    first.add_done_callback(lambda _: batches_when_told.append(len(spy.batches)))
    await asyncio.sleep(0)
    second = recorder.submit([arrival("second")])
    spy.open.set()
    await second
    assert batches_when_told == [2]


def _fail(_: Pending) -> None:
    raise RuntimeError("nobody is there")


async def test_a_sender_that_cannot_be_told_does_not_hold_up_the_others(
    spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    answers = [recorder.submit([it]) for it in arrivals(3)]
    told: list[Pending] = []
    answers[0].add_done_callback(_fail)
    for answer in answers[1:]:
        answer.add_done_callback(told.append)
    await recorder.close()
    await asyncio.sleep(0)
    assert told == answers[1:]
    assert [record.message for record in caplog.records] == ["an answer could not be given"]


async def test_an_answer_that_is_there_is_told_at_once(spy: Spy) -> None:
    answer = Recorder(spy, Settings(), SystemClock()).submit([])
    told: list[Pending] = []
    answer.add_done_callback(told.append)
    assert told == [answer]
    assert answer.result() == ()
