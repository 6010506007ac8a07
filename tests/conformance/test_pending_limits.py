"""Requests that are never written give back their room among the pending ones."""

import asyncio

import pytest

from onceward.errors import LedgerUnavailable, Overloaded
from onceward.model.events import Outcome
from onceward.ports import Store
from onceward.receive.recorder import Recorder
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from tests.factories import arrival
from tests.ledger_spy import Spy

BODY = b"x" * 1000
LIMITS = [
    Settings(max_pending_events=3),
    Settings(max_pending_bytes=3 * arrival(body=BODY).size),
]


@pytest.mark.parametrize("settings", LIMITS, ids=["events", "bytes"])
async def test_requests_that_ended_before_their_write_do_not_count_as_pending(
    store: Store, settings: Settings
) -> None:
    spy = Spy(store)
    recorder = Recorder(spy, settings, SystemClock())
    for turn in range(3):
        spy.unblocked.clear()
        written = recorder.submit([arrival(f"written-{turn}", body=BODY)])
        await asyncio.sleep(0)  # its write begins
        for number in range(2):
            ended = recorder.submit([arrival(f"ended-{turn}-{number}", body=BODY)])
            ended.set_error(LedgerUnavailable("expired or cancelled"))
        with pytest.raises(Overloaded):
            recorder.submit([arrival("beyond", body=BODY)])
        spy.unblocked.set()
        assert (await written)[0].outcome is Outcome.RECORDED
    await recorder.close()
    assert spy.sizes == [1, 1, 1]
