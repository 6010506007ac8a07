"""The limits of inline requests: who waits, for how long, and what is not started any more."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from onceward import Event, Transaction
from onceward.errors import EventChanged
from onceward.model.events import Arrival
from onceward.ports import LockedEvents
from onceward.work.inline import requests
from support.database import RawDatabase
from tests.factories import arrival, opened
from tests.inline_sources import (
    INSERT,
    SECRET,
    Gate,
    events_webhook,
    hookmesh_webhook,
    inline_inbox,
    noting_inbox,
    send,
)
from tests.inprocess import RunningInbox, notes, receive_only

pytestmark = pytest.mark.every_store


def count_looks(bench: RunningInbox, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the first event of each request that tries to lock its events."""
    looks: list[str] = []
    lock_events = bench.store.lock_events

    def lock(arrivals: Sequence[Arrival]) -> AbstractAsyncContextManager[LockedEvents]:
        looks.append(arrivals[0].event_id)
        return lock_events(arrivals)

    monkeypatch.setattr(bench.store, "lock_events", lock)
    return looks


@asynccontextmanager
async def held_elsewhere(url: str, event_id: str = "evt_1") -> AsyncIterator[None]:
    """Let another process have an event."""
    async with (
        opened(url, sources=["hookmesh"], handlers=[]) as other,
        other.lock_events([arrival(event_id, source="hookmesh")]),
    ):
        yield


async def test_the_deliveries_of_one_event_queue_before_they_look_at_the_ledger(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with receive_only(noting_inbox(gate), database_url) as bench:
        looks = count_looks(bench, monkeypatch)
        sending = [asyncio.create_task(send(bench, hookmesh_webhook())) for _ in range(10)]
        await gate.wait_for(1)
        await asyncio.sleep(0.1)  # time for a second look at an event that is locked elsewhere
        assert (len(looks), gate.waiting) == (1, 1)
        gate.opened.set()
        await asyncio.gather(*sending)
    assert (len(looks), gate.waiting) == (10, 1)


async def test_an_event_that_another_process_keeps_is_looked_at_ever_less_often(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        receive_only(noting_inbox(), postgres_url, inline_timeout_seconds=1.0) as bench,
        held_elsewhere(postgres_url),
    ):
        looks = count_looks(bench, monkeypatch)
        async with asyncio.timeout(5):
            status, body = await send(bench, hookmesh_webhook())
        assert (status, body["error"]) == (503, "busy")
        assert 1 < len(looks) <= 6


async def test_an_event_that_another_process_keeps_does_not_delay_another_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 3.0)
    async with receive_only(noting_inbox(), postgres_url, inline_requests=1) as bench:
        looks = count_looks(bench, monkeypatch)
        async with held_elsewhere(postgres_url):
            waiting = asyncio.create_task(send(bench, hookmesh_webhook("evt_1")))
            await asyncio.sleep(0.2)
            async with asyncio.timeout(2):
                assert (await send(bench, hookmesh_webhook("evt_2")))[0] == 200
        assert looks == ["evt_1", "evt_2"]
        assert (await waiting)[1]["status"] == "processed"


async def test_a_delivery_does_not_wait_for_a_slow_commit_beyond_its_time(
    postgres_url: str,
) -> None:
    gate = Gate()
    raw_db = RawDatabase(postgres_url)
    async with receive_only(noting_inbox(gate), postgres_url, inline_timeout_seconds=1.2) as bench:
        raw_db.rows(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(2.5); RETURN NULL; END'"
        )
        raw_db.rows(
            "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION wait()"
        )
        slow = asyncio.create_task(send(bench, hookmesh_webhook()))
        await gate.wait_for(1)
        gate.opened.set()
        status, body = await send(bench, hookmesh_webhook())
        assert (status, body["error"]) == (503, "busy")
        assert not slow.done()
        assert (await slow)[0] == 200


async def test_a_request_that_has_waited_for_half_of_its_time_starts_no_handler(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    webhook = hookmesh_webhook(is_broken=True)
    async with receive_only(noting_inbox(gate), database_url, inline_timeout_seconds=2.0) as bench:
        looks = count_looks(bench, monkeypatch)
        sending = [asyncio.create_task(send(bench, webhook)) for _ in range(2)]
        await gate.wait_for(1)
        await asyncio.sleep(1.2)
        gate.opened.set()
        first, second = await asyncio.gather(*sending)
    assert first[0] == 500
    assert (second[0], second[1]["error"]) == (503, "busy")
    assert gate.waiting == 1
    assert len(looks) == 2  # the second one does not wait again


async def test_an_event_that_changes_again_and_again_is_left_to_the_sender(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def change(arrivals: Sequence[Arrival]) -> AbstractAsyncContextManager[LockedEvents]:
        looks.append(arrivals[0].event_id)
        assert len(looks) < 10
        raise EventChanged

    async with receive_only(noting_inbox(), database_url) as bench:
        monkeypatch.setattr(bench.store, "lock_events", change)
        status, body = await send(bench, hookmesh_webhook())
    assert (status, body["error"]) == (503, "busy")
    assert len(looks) == 5


async def test_the_bodies_of_requests_that_wait_or_run_are_limited(database_url: str) -> None:
    gate = Gate()
    first, second, third = (
        hookmesh_webhook(event_id, note="x" * 600) for event_id in ("evt_1", "evt_2", "evt_3")
    )
    size = len(first.body)
    limits = {"max_body_bytes": size, "max_pending_bytes": 3 * size}  # with headers, two fit
    async with receive_only(noting_inbox(gate), database_url, **limits) as bench:
        sending = [asyncio.create_task(send(bench, each)) for each in (first, second)]
        await gate.wait_for(2)
        status, body = await send(bench, third)
        assert (status, body["error"]) == (503, "overloaded")
        gate.opened.set()
        assert [status for status, _ in await asyncio.gather(*sending)] == [200, 200]
        assert (await send(bench, third))[0] == 200


async def test_a_request_above_the_limits_runs_if_it_is_alone(database_url: str) -> None:
    webhook = hookmesh_webhook("evt_1", note="x" * 1000)
    size = len(webhook.body)  # with its headers, it is above the limit
    limits = {"max_body_bytes": size, "max_pending_bytes": size}
    async with receive_only(noting_inbox(), database_url, **limits) as bench:
        assert (await send(bench, webhook))[0] == 200


async def test_no_handler_starts_after_the_time_of_its_request(database_url: str) -> None:
    inbox = inline_inbox()
    inbox.source("gocardless", secrets=[SECRET], mode="inline")
    started: list[str] = []

    @inbox.on("*", source="gocardless")
    async def block(event: Event[Any]) -> None:
        started.append(event.id)
        time.sleep(1.1)  # noqa: ASYNC251 - so that no timeout can end it

    async with receive_only(inbox, database_url, inline_timeout_seconds=1.0) as bench:
        status, body = await send(bench, events_webhook("EV1", "EV2"))
    assert status == 500
    limit = "the handlers of the request took longer than 1 s (inline_timeout_seconds)"
    assert body["message"].startswith(limit)
    assert started == ["EV1"]


async def test_a_handler_whose_timed_out_calls_still_run_is_paused(database_url: str) -> None:
    inbox = inline_inbox()
    go_on = threading.Event()

    @inbox.on("order.*", source="hookmesh", timeout_seconds=0.2)
    def note(event: Event[Any], tx: Any) -> None:
        go_on.wait(10)

    async with receive_only(inbox, database_url, workers=1) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 500
        status, body = await send(bench, hookmesh_webhook("evt_2"))
        assert (status, body["error"]) == (503, "paused")
        go_on.set()


async def test_a_handler_stops_at_its_own_shorter_limit(database_url: str) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh", timeout_seconds=0.2)
    async def note(event: Event[Any], tx: Transaction) -> None:
        await asyncio.sleep(5)
        await tx.execute(INSERT, {"text": event.id})

    async with receive_only(inbox, database_url) as bench:
        status, body = await send(bench, hookmesh_webhook())
    assert (status, body["message"]) == (500, "note took longer than 0.2 s (timeout_seconds)")
    assert notes(database_url) == []
