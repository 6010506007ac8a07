"""The log explains a busy inline request, and names handlers that nearly reach their limit."""

import asyncio

import pytest

from support.postgres import Cluster
from support.processes import eventually_async
from tests.inline_sources import Gate, hookmesh_webhook, noting_inbox, send
from tests.inprocess import receive_only


async def test_a_busy_request_is_explained_in_the_log(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    limits = {"inline_requests": 1, "inline_timeout_seconds": 0.6}
    async with receive_only(noting_inbox(gate), database_url, **limits) as bench:
        running = asyncio.create_task(send(bench, hookmesh_webhook("evt_1")))
        await gate.wait_for(1)
        assert (await send(bench, hookmesh_webhook("evt_2")))[1]["error"] == "busy"
        await running
    (line,) = [record for record in caplog.records if "All 1 inline" in record.getMessage()]
    text = "All 1 inline_requests are taken; the longest, handler 'note' of source 'hookmesh', for"
    assert text in line.getMessage()
    assert "s (event evt_1)." in line.getMessage()
    assert (line.__dict__["event_id"], line.__dict__["source"]) == ("evt_2", "hookmesh")


async def test_a_handler_that_takes_most_of_its_time_is_a_warning(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with receive_only(noting_inbox(gate), database_url, inline_timeout_seconds=1) as bench:
        sending = asyncio.create_task(send(bench, hookmesh_webhook()))
        await gate.wait_for(1)
        await asyncio.sleep(0.6)  # the time itself is what is reported
        gate.opened.set()
        assert (await sending)[0] == 200
        assert (await send(bench, hookmesh_webhook("evt_2")))[0] == 200
    (line,) = [record for record in caplog.records if "it has within" in record.getMessage()]
    assert line.getMessage().startswith("handler 'note' of source 'hookmesh' took 0.")
    assert "of the 1 s" in line.getMessage()
    assert (line.levelname, line.__dict__["event_id"]) == ("WARNING", "evt_1")


async def test_the_end_of_an_outage_counts_the_inline_requests(
    postgres_cluster: Cluster, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with receive_only(noting_inbox(), postgres_url) as bench:
        recorder = bench.service._recorder
        postgres_cluster.stop()
        try:
            await recorder.check()
            for _ in range(2):
                assert (await send(bench, hookmesh_webhook()))[1]["error"] == "unavailable"
        finally:
            postgres_cluster.start()

        async def is_over() -> bool:
            await recorder.check()
            return "ledger available again; asked 2 requests to retry" in caplog.messages

        await eventually_async(is_over, "the outage is over, and its requests are counted")
