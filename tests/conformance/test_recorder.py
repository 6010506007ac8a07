"""Group commit: pending requests are written in batches, and bounded."""

import asyncio

import pytest

from onceward.errors import LedgerUnavailable, RequestRefused, StoreUnavailable, Unwritable
from onceward.http.responses import error_response
from onceward.model.events import Outcome
from onceward.ports import Store
from onceward.receive.pending import Pending
from onceward.receive.recorder import SLOW_WRITE_SECONDS, Recorder
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from support.database import RawDatabase
from tests.factories import arrival, arrivals, opened
from tests.ledger_spy import Spy, errors_of, ids


@pytest.fixture
def spy(store: Store) -> Spy:
    return Spy(store)


async def test_a_lone_request_is_written_at_once(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    (receipt,) = await asyncio.wait_for(recorder.submit([arrival()]), 1.0)
    assert receipt.outcome is Outcome.RECORDED
    assert spy.sizes == [1]
    await recorder.close()


async def test_a_request_right_after_another_starts_a_new_writer(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    for number in range(5):  # submitted in the iteration in which the one before resolves
        await asyncio.wait_for(recorder.submit([arrival(f"evt_{number}")]), 1.0)
    assert sum(spy.sizes) == 5
    await recorder.close()


async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.failing = StoreUnavailable("connection refused")
    for number in range(3):
        with pytest.raises(RequestRefused):
            await recorder.submit([arrival(f"evt_{number}")])
    spy.failing = None
    for number in range(2):
        await recorder.submit([arrival(f"evt_{number}")])
    assert [record.getMessage() for record in caplog.records] == [
        "ledger unavailable; asking senders to retry: connection refused",
        "ledger available again; asked 3 requests to retry",
    ]


@pytest.mark.parametrize("error", [StoreUnavailable, Unwritable, RuntimeError])
async def test_a_recorder_warns_while_the_last_write_failed(
    spy: Spy, error: type[Exception]
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    await recorder.submit([arrival("before")])
    assert [*recorder.warnings] == []
    spy.failing = error('server at "db.internal" (10.0.0.3), port 5432: too many clients')
    with pytest.raises(LedgerUnavailable):
        await recorder.submit([arrival()])
    (warning,) = recorder.warnings
    assert warning.startswith("The last events could not be recorded, and their senders got 503: ")
    assert "port 5432: too many clients. The log onceward.receive has the details." in warning
    assert "db.internal" not in warning  # anyone can read it
    assert "10.0.0.3" not in warning
    spy.failing = None
    await recorder.submit([arrival()])
    assert [*recorder.warnings] == []


async def test_requests_that_arrive_during_a_write_form_the_next_batch(
    spy: Spy, store: Store
) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=40), SystemClock())
    spy.unblocked.clear()
    requests = [recorder.submit([arrival("first")])]
    await asyncio.sleep(0)  # the first write begins
    requests += [recorder.submit([it]) for it in arrivals(100)]
    spy.unblocked.set()
    events = [receipt.event for (receipt,) in await asyncio.gather(*requests)]
    assert spy.sizes == [1, 40, 40, 20]
    assert events == sorted(events)
    assert len(await ids(store)) == 101


async def test_two_hundred_concurrent_requests_take_one_transaction(spy: Spy, store: Store) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    receipts = await asyncio.gather(*(recorder.submit([arrival()]) for _ in range(200)))
    assert sum(receipt.outcome is Outcome.RECORDED for (receipt,) in receipts) == 1
    assert spy.sizes == [200]


async def test_each_writer_writes_a_batch_of_its_own(store: Store) -> None:
    spy = Spy(store, max_writers=2)
    recorder = Recorder(spy, Settings(max_batch_events=5), SystemClock())
    spy.unblocked.clear()
    requests = [recorder.submit([it]) for it in arrivals(20)]
    await asyncio.sleep(0)
    assert spy.sizes == [5, 5]
    spy.unblocked.set()
    await asyncio.gather(*requests)
    assert spy.sizes == [5, 5, 5, 5]
    assert len(await ids(store)) == 20


async def test_new_and_repeated_events_are_written_alternately(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        spy = Spy(store)
        recorder = Recorder(spy, Settings(max_batch_events=2), SystemClock())
        await recorder.submit([arrival("k")])
        spy.batches.clear()
        spy.unblocked.clear()
        requests = [recorder.submit([arrival("first")])]
        await asyncio.sleep(0)  # the first write begins
        for number in range(4):
            requests += [recorder.submit([arrival(f"n{number}")]), recorder.submit([arrival("k")])]
        spy.unblocked.set()
        await asyncio.gather(*requests)
        kinds = ["".join(it.event_id[0] for it in batch) for batch in spy.batches]
        assert kinds == ["f", "kk", "nn", "kk", "nn"]
        await recorder.close()


async def test_a_request_with_new_and_repeated_events_counts_as_new(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        spy = Spy(store)
        recorder = Recorder(spy, Settings(), SystemClock())
        await recorder.submit([arrival("k")])
        spy.batches.clear()
        spy.unblocked.clear()
        requests = [recorder.submit([arrival("first")])]
        await asyncio.sleep(0)  # the first write begins
        requests.append(recorder.submit([arrival("k"), arrival("n0")]))
        requests += [recorder.submit([arrival("k")]), recorder.submit([arrival("n1")])]
        spy.unblocked.set()
        await asyncio.gather(*requests)
        kinds = ["".join(it.event_id[0] for it in batch) for batch in spy.batches]
        assert kinds == ["f", "k", "knn"]
        await recorder.close()


async def test_a_slow_batch_does_not_delay_the_next(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        recorder = Recorder(store, Settings(), SystemClock())
        (first,) = await recorder.submit([arrival("repeated")])
        with RawDatabase(postgres_url).connection() as connection:
            connection.execute("LOCK onceward.payloads IN EXCLUSIVE MODE")
            new = recorder.submit([arrival("new")])
            await asyncio.sleep(0)  # the write of the new event begins
            (repeated,) = await asyncio.wait_for(recorder.submit([arrival("repeated")]), 1)
            assert (repeated.event, repeated.outcome) == (first.event, Outcome.DUPLICATE)
            assert not new.done()
        assert (await new)[0].outcome is Outcome.RECORDED
        await recorder.close()


async def test_a_slow_second_batch_does_not_delay_the_next(store: Store) -> None:
    spy = Spy(store, max_writers=2)
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.unblocked.clear()
    requests = [recorder.submit([arrival("quick")])]
    await asyncio.sleep(0)  # its write begins
    requests.append(recorder.submit([arrival("slow")]))
    await asyncio.sleep(SLOW_WRITE_SECONDS * 0.6)
    spy.unblocked.set()
    await asyncio.sleep(0)  # the first write continues
    spy.unblocked.clear()
    await requests[0]
    requests.append(recorder.submit([arrival("last")]))
    assert spy.sizes == [1, 1]
    await asyncio.sleep(SLOW_WRITE_SECONDS * 3)
    assert spy.sizes == [1, 1, 1]
    spy.unblocked.set()
    await asyncio.gather(*requests)
    await recorder.close()


async def test_each_slow_write_gets_a_second_writer(store: Store) -> None:
    spy = Spy(store, max_writers=2)
    recorder = Recorder(spy, Settings(), SystemClock())
    for number in (1, 2):
        spy.unblocked.clear()
        requests = []
        for name in ("slow", "next"):
            requests.append(recorder.submit([arrival(f"{name}-{number}")]))
            await asyncio.sleep(0)  # the write of the first begins
        await asyncio.sleep(SLOW_WRITE_SECONDS * 3)
        assert len(spy.batches) == 2 * number
        spy.unblocked.set()
        await asyncio.gather(*requests)
        await asyncio.sleep(SLOW_WRITE_SECONDS * 2)  # the timer ends with nothing to write
    await recorder.close()


async def test_a_cancelled_request_does_not_block_the_ones_behind_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.receive.recorder.SLOW_WRITE_SECONDS", 10)
    async with opened(postgres_url) as store:
        spy = Spy(store)
        recorder = Recorder(spy, Settings(), SystemClock())
        await recorder.submit([arrival("repeated")])
        spy.unblocked.clear()
        first = recorder.submit([arrival("first")])
        await asyncio.sleep(0)  # its write begins
        recorder.submit([arrival("repeated")]).set_error(
            LedgerUnavailable("The request was cancelled.")
        )
        last = recorder.submit([arrival("new")])
        spy.unblocked.set()
        (receipt,) = await asyncio.wait_for(last, 1)
        assert receipt.outcome is Outcome.RECORDED
        assert first.done()
        await recorder.close()


async def test_the_events_of_one_request_stay_in_one_batch_if_they_fit(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=10), SystemClock())
    spy.unblocked.clear()
    first = recorder.submit([arrival("first")])
    await asyncio.sleep(0)  # the first write begins
    batches = [arrivals(4, prefix="a"), arrivals(7, prefix="b"), arrivals(10, prefix="c"), []]
    requests = [recorder.submit(batch) for batch in batches]
    spy.unblocked.set()
    receipts = await asyncio.gather(first, *requests)
    assert [len(each) for each in receipts] == [1, 4, 7, 10, 0]
    assert spy.sizes == [1, 4, 7, 10]
    again = await recorder.submit([*arrivals(2, prefix="a"), arrival("new")])
    outcomes = [receipt.outcome for receipt in again]
    assert outcomes == [Outcome.DUPLICATE, Outcome.DUPLICATE, Outcome.RECORDED]
    assert [receipt.event for receipt in again[:2]] == [
        receipt.event for receipt in receipts[1][:2]
    ]


async def test_requests_beyond_the_pending_limit_are_refused(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(max_pending_events=3), SystemClock())
    spy.unblocked.clear()
    requests = [recorder.submit([it]) for it in arrivals(3)]
    with pytest.raises(RequestRefused) as refused:
        recorder.submit([arrival("beyond")])
    assert refused.value.code == "overloaded"
    assert error_response(refused.value).headers == [(b"retry-after", b"2")]
    spy.unblocked.set()
    await asyncio.gather(*requests)
    assert (await recorder.submit([arrival("later")]))[0].outcome is Outcome.RECORDED


async def test_requests_beyond_the_pending_bytes_are_refused(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(max_pending_bytes=1024), SystemClock())
    spy.unblocked.clear()
    headers = len(arrival().headers)
    pending = recorder.submit([arrival("a", body=b"x" * (1000 - headers))])
    with pytest.raises(RequestRefused) as refused:
        recorder.submit([arrival("b", body=b"x" * (25 - headers))])
    assert refused.value.code == "overloaded"
    fits = recorder.submit([arrival("c", body=b"x" * (24 - headers))])
    spy.unblocked.set()
    await asyncio.gather(pending, fits)
    await recorder.submit([arrival("d", body=b"x" * 1024)])  # alone, it has room


async def test_requests_expire_while_the_ledger_hangs_and_work_afterwards(
    spy: Spy, store: Store
) -> None:
    recorder = Recorder(spy, Settings(commit_timeout_seconds=0.1), SystemClock())
    spy.unblocked.clear()
    requests = [recorder.submit([arrival("in the write")])]
    await asyncio.sleep(0)
    requests += [recorder.submit([it]) for it in arrivals(5)]
    refused = await asyncio.wait_for(errors_of(requests), 1.0)
    assert [error.code for error in refused] == ["slow"] * 6
    spy.unblocked.set()
    (later,) = await recorder.submit([arrival("later")])
    assert later.outcome is Outcome.RECORDED
    # The write that had begun was completed; the pending requests expired and were not written.
    assert await ids(store) == {"in the write", "later"}
    assert (await recorder.submit([arrival("in the write")]))[0].outcome is Outcome.DUPLICATE


async def test_expired_requests_count_as_pending_until_their_write_ends(spy: Spy) -> None:
    recorder = Recorder(
        spy, Settings(commit_timeout_seconds=0.5, max_pending_events=4), SystemClock()
    )
    spy.unblocked.clear()
    requests = [recorder.submit([it]) for it in arrivals(4)]
    await errors_of(requests)
    with pytest.raises(RequestRefused, match="Too many"):
        recorder.submit([arrival("beyond")])
    spy.unblocked.set()
    await recorder.close()
    await recorder.submit([arrival("later")])


async def test_a_ledger_failure_refuses_the_request_without_details(spy: Spy, store: Store) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.failing = StoreUnavailable("no route to host")
    (refused,) = await errors_of([recorder.submit([arrival()])])
    assert refused.code == "unavailable"
    assert "route" not in refused.message
    spy.failing = None
    assert (await recorder.submit([arrival()]))[0].outcome is Outcome.RECORDED


async def test_an_unexpected_error_refuses_the_request(spy: Spy) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.failing = ZeroDivisionError("a defect")
    (refused,) = await errors_of([recorder.submit([arrival()])])
    assert isinstance(refused, LedgerUnavailable)
    spy.failing = None
    await recorder.submit([arrival()])


async def test_a_request_that_the_database_refuses_does_not_fail_the_others(
    spy: Spy, store: Store, raw_db: RawDatabase
) -> None:
    raw_db.reject_inserts_of("evt_13")
    recorder = Recorder(spy, Settings(), SystemClock())
    requests = [recorder.submit([it]) for it in arrivals(50)]
    (refused,) = await errors_of(requests)
    assert refused.code == "not_recorded"
    with pytest.raises(RequestRefused) as raised:
        requests[13].result()
    assert raised.value is refused
    others = {request.result()[0].outcome for request in requests if request is not requests[13]}
    assert others == {Outcome.RECORDED}
    assert await ids(store) == {f"evt_{number}" for number in range(50)} - {"evt_13"}


async def test_closing_flushes_pending_requests(spy: Spy, store: Store) -> None:
    recorder = Recorder(spy, Settings(max_batch_events=10), SystemClock())
    spy.unblocked.clear()
    requests = [recorder.submit([it]) for it in arrivals(35)]
    asyncio.get_running_loop().call_later(0.05, spy.unblocked.set)
    await recorder.close()
    assert all(request.done() for request in requests)
    assert len(await ids(store)) == 35


async def test_a_request_cancelled_before_its_write_is_not_written(spy: Spy, store: Store) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.unblocked.clear()
    recorder.submit([arrival("a")])
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(recorder.submit([arrival("b")]), 0.01)
    recorder.submit([arrival("c")])
    spy.unblocked.set()
    await recorder.close()
    assert await ids(store) == {"a", "c"}


async def test_the_next_write_begins_before_the_responses_of_the_last(
    spy: Spy,
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    batches_at_callback: list[int] = []
    spy.unblocked.clear()
    first = recorder.submit([arrival("first")])
    first.add_done_callback(lambda _: batches_at_callback.append(len(spy.batches)))
    await asyncio.sleep(0)
    second = recorder.submit([arrival("second")])
    spy.unblocked.set()
    await second
    assert batches_at_callback == [2]


def _fail(_: Pending) -> None:
    raise RuntimeError("the sender is disconnected")


async def test_a_failing_callback_does_not_block_the_others(
    spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    requests = [recorder.submit([it]) for it in arrivals(3)]
    called: list[Pending] = []
    requests[0].add_done_callback(_fail)
    for request in requests[1:]:
        request.add_done_callback(called.append)
    await recorder.close()
    await asyncio.sleep(0)
    assert called == requests[1:]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("response cannot be sent: ")


async def test_a_callback_on_a_finished_request_runs_at_once(spy: Spy) -> None:
    pending = Recorder(spy, Settings(), SystemClock()).submit([])
    called: list[Pending] = []
    pending.add_done_callback(called.append)
    assert called == [pending]
    assert pending.result() == ()


async def test_an_idle_recorder_logs_an_outage_and_its_end(
    spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    await recorder.check()
    spy.failing = StoreUnavailable("connection refused")
    for _ in range(2):
        await recorder.check()
    spy.failing = None
    for _ in range(2):
        await recorder.check()
    assert caplog.messages == [
        "ledger unavailable; asking senders to retry: connection refused",
        "ledger available again; asked 0 requests to retry",
    ]


async def test_a_check_does_not_end_an_outage_of_writes_alone(
    spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(spy, Settings(), SystemClock())
    spy.failing = StoreUnavailable("the disk is full")
    with pytest.raises(LedgerUnavailable):
        await recorder.submit([arrival()])
    spy.failing = None
    await recorder.check()
    assert len(caplog.messages) == len(list(recorder.warnings)) == 1
    await recorder.submit([arrival()])
    assert caplog.messages[1:] == ["ledger available again; asked 1 requests to retry"]
    assert not recorder.warnings


async def test_an_outage_logs_each_reason_once_and_counts_the_requests_that_were_slow(
    spy: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(spy, Settings(commit_timeout_seconds=0.05), SystemClock())
    spy.unblocked.clear()
    spy.failing = StoreUnavailable("no response for 4.9 s")
    await recorder.check()
    with pytest.raises(LedgerUnavailable, match="slow"):
        await recorder.submit([arrival()])
    spy.failing = StoreUnavailable("a lock")
    spy.unblocked.set()
    for _ in range(2):
        with pytest.raises(LedgerUnavailable):
            await recorder.submit([arrival()])
    spy.failing = StoreUnavailable("no response for 9.9 s")
    await recorder.check()
    spy.failing = StoreUnavailable("a lock")
    with pytest.raises(LedgerUnavailable):
        await recorder.submit([arrival()])
    spy.failing = None
    await recorder.check()  # reads work, and the last write failed
    await recorder.submit([arrival()])
    assert caplog.messages == [
        "ledger unavailable; asking senders to retry: no response for 4.9 s",
        "ledger unavailable; asking senders to retry: a lock",
        "ledger available again; asked 4 requests to retry",
    ]
