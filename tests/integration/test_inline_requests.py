"""Inline requests beside workers, other processes and each other, in the test's own process."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from onceward import Effects, Event, Inbox, PermanentError, Transaction
from onceward.model.admin import OperatorAction
from onceward.model.jobs import JobStatus
from onceward.store.locks import INLINE_NAMESPACE
from support.database import RawDatabase
from support.processes import eventually_async
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
from tests.inprocess import RunningInbox, notes, receive_only, run_inbox
from tests.integration.running import JSON, SignedWebhook, digest

ACT = OperatorAction(actor="Ann", authenticated_as="token:ops", reason="the bank was down")


@asynccontextmanager
async def batch_inbox(url: str, broken: set[str]) -> AsyncIterator[RunningInbox]:
    """Run an inbox with an inline source that sends several events in one request."""
    inbox = inline_inbox()
    inbox.source("gocardless", secrets=[SECRET], mode="inline")

    @inbox.on("*", source="gocardless")
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})
        if event.id in broken:
            raise PermanentError("no such payment")

    async with receive_only(inbox, url) as bench:
        yield bench


async def test_the_events_of_a_request_are_processed_together_or_not_at_all(
    database_url: str,
) -> None:
    broken = {"EV2"}
    async with batch_inbox(database_url, broken) as bench:
        failed = {"error": "Processing failed", "message": "no such payment"}
        assert await send(bench, events_webhook("EV1", "EV2", "EV3")) == (500, failed)
        assert notes(database_url) == []
        jobs = await bench.jobs()
        assert {job.status for job in jobs.values()} == {JobStatus.FAILED}
        assert {name: job.last_error for name, job in jobs.items()} == {
            "EV1/note": "Rolled back, because the handler note failed",
            "EV2/note": "no such payment",
            "EV3/note": "Rolled back, because the handler note failed",
        }
        assert await send(bench, events_webhook("EV1")) == (
            200,
            {"status": "processed", "event_id": "EV1"},
        )
        broken.clear()
        statuses = {"EV1": "already_processed", "EV2": "processed", "EV4": "processed"}
        events = [{"status": status, "event_id": name} for name, status in statuses.items()]
        webhook = events_webhook("EV1", "EV2", "EV4")
        assert await send(bench, webhook) == (200, {"events": events})
        assert notes(database_url) == ["EV1", "EV2", "EV4"]


async def test_an_event_that_comes_twice_in_one_request_is_processed_once(
    database_url: str,
) -> None:
    async with batch_inbox(database_url, set()) as bench:
        event = {"status": "processed", "event_id": "EV1"}
        webhook = events_webhook("EV1", "EV1")
        assert await send(bench, webhook) == (200, {"events": [event, event]})
        assert await send(bench, events_webhook()) == (200, {"events": []})
        assert notes(database_url) == ["EV1"]


async def test_the_time_of_a_request_covers_all_of_its_events(database_url: str) -> None:
    inbox = inline_inbox()
    inbox.source("gocardless", secrets=[SECRET], mode="inline")

    @inbox.on("*", source="gocardless")
    async def wait(event: Event[Any]) -> None:
        await asyncio.sleep(1.0)

    async with receive_only(inbox, database_url, inline_timeout_seconds=2.0) as bench:
        started = time.monotonic()
        status, _ = await send(bench, events_webhook(*(f"EV{number}" for number in range(10))))
        assert status == 500
        assert time.monotonic() - started < 8


async def test_a_provider_gets_the_response_that_it_expects(database_url: str) -> None:
    inbox = inline_inbox()
    inbox.source("xero", secrets=[SECRET], mode="inline")
    failures = ["no such contact"]

    @inbox.on("*", source="xero")
    async def note(event: Event[Any]) -> None:
        if failures:
            raise PermanentError(failures.pop())

    event = {"resourceId": "r1", "eventType": "UPDATE", "eventDateUtc": "2026-01-01T00:00:00"}
    body = json.dumps({"events": [{**event, "eventCategory": "CONTACT"}]}).encode()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).digest()
    headers = JSON | {"x-xero-signature": base64.b64encode(signature).decode()}
    webhook = SignedWebhook("xero", body, headers)
    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, webhook))[0] == 500
        assert [await send(bench, webhook) for _ in range(2)] == [(200, None)] * 2


async def test_a_redelivery_and_a_requeued_job_do_not_both_commit(database_url: str) -> None:
    gate = Gate()
    inbox = inline_inbox()
    calls: list[str] = []

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        calls.append(event.id)
        if len(calls) == 1:
            raise PermanentError("no such order")
        if len(calls) == 2:
            await gate.pass_through()
        await tx.execute(INSERT, {"text": event.id})

    async with run_inbox(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 500
        redelivery = asyncio.create_task(send(bench, hookmesh_webhook()))
        await gate.wait_for(1)
        assert await bench.store.requeue(int((await bench.job()).id), ACT)
        await bench.wait_until_idle()
        gate.opened.set()
        assert await redelivery == (200, {"status": "already_processed", "event_id": "evt_1"})
        assert len(calls) == 3
        assert notes(database_url) == ["evt_1"]


async def test_a_job_that_failed_in_a_worker_waits_for_an_operator(database_url: str) -> None:
    webhook = hookmesh_webhook(is_broken=True)
    async with run_inbox(noting_inbox(), database_url) as bench:
        assert (await send(bench, webhook))[0] == 500
        assert await bench.store.requeue(int((await bench.job()).id), ACT)
        await bench.wait_until_idle()
        status, receipt = await send(bench, webhook)
        assert (status, receipt["duplicate"]) == (202, True)
        assert (await bench.job()).failure_type == "permanent"


async def test_waiting_requests_hold_no_connection(postgres_url: str) -> None:
    gate = Gate()
    raw_db = RawDatabase(postgres_url)
    async with receive_only(noting_inbox(gate), postgres_url) as bench:
        sending = [asyncio.create_task(send(bench, hookmesh_webhook())) for _ in range(10)]
        await gate.wait_for(1)
        held_or_awaited = raw_db.rows(
            "SELECT granted FROM pg_locks JOIN pg_database d ON d.oid = database "  # noqa: S608
            f"WHERE classid = {INLINE_NAMESPACE} AND d.datname = current_database()"
        )
        assert held_or_awaited == [(True,)]
        gate.opened.set()
        answers = Counter(body["status"] for _, body in await asyncio.gather(*sending))
    assert answers == {"processed": 1, "already_processed": 9}
    assert gate.waiting == 1


async def test_two_events_run_at_the_same_time(database_url: str) -> None:
    gate = Gate()
    async with receive_only(noting_inbox(gate), database_url) as bench:
        sending = [
            asyncio.create_task(send(bench, hookmesh_webhook(f"evt_{number}")))
            for number in range(2)
        ]
        await gate.wait_for(2)
        gate.opened.set()
        assert [status for status, _ in await asyncio.gather(*sending)] == [200, 200]


async def test_requests_beyond_the_limits_get_a_503(database_url: str) -> None:
    gate = Gate()
    limits = {"inline_requests": 1, "max_pending_events": 2, "inline_timeout_seconds": 0.6}
    async with receive_only(noting_inbox(gate), database_url, **limits) as bench:
        running = asyncio.create_task(send(bench, hookmesh_webhook("evt_1")))
        await gate.wait_for(1)
        waiting = asyncio.create_task(send(bench, hookmesh_webhook("evt_2")))
        await asyncio.sleep(0)
        status, body = await send(bench, hookmesh_webhook("evt_3"))
        assert (status, body["error"]) == (503, "overloaded")
        status, body = await waiting
        assert (status, body["error"]) == (503, "busy")
        assert (await running)[0] == 500
        gate.opened.set()
        assert (await send(bench, hookmesh_webhook("evt_2")))[0] == 200


async def test_handlers_of_other_processes_run_in_the_background(database_url: str) -> None:
    elsewhere = inline_inbox()

    @elsewhere.on("order.paid", "only.*", source="hookmesh")
    async def ship(event: Event[Any]) -> None:
        pass

    async with receive_only(elsewhere, database_url):
        pass  # its routes stay
    async with receive_only(noting_inbox(), database_url) as bench:
        status, receipt = await send(bench, hookmesh_webhook())
        assert (status, receipt["duplicate"]) == (202, False)
        jobs = await bench.jobs()
        assert {name: job.status for name, job in jobs.items()} == {
            "evt_1/note": JobStatus.DONE,
            "evt_1/ship": JobStatus.QUEUED,
        }
        status, receipt = await send(bench, hookmesh_webhook("evt_2", "only.here"))
        assert (status, receipt["duplicate"]) == (202, False)


async def test_an_event_is_processed_only_when_every_handler_of_it_is_done(
    database_url: str,
) -> None:
    inbox = noting_inbox()
    is_locked = True

    @inbox.on("order.*", source="hookmesh")
    async def book(event: Event[Any]) -> None:
        if is_locked:
            raise PermanentError("the account is locked")

    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 500
        job = (await bench.jobs())["evt_1/book"]
        assert await bench.store.requeue(int(job.id), ACT)
        status, receipt = await send(bench, hookmesh_webhook())
        assert (status, receipt["duplicate"]) == (202, True)
        statuses = {name: job.status for name, job in (await bench.jobs()).items()}
        assert statuses == {"evt_1/note": JobStatus.DONE, "evt_1/book": JobStatus.QUEUED}
    is_locked = False
    async with run_inbox(inbox, database_url) as bench:
        await bench.wait_until_idle()
        already = {"status": "already_processed", "event_id": "evt_1"}
        assert await send(bench, hookmesh_webhook()) == (200, already)


async def test_a_job_that_failed_in_a_worker_keeps_its_event_unprocessed(
    database_url: str,
) -> None:
    inbox = noting_inbox()
    is_locked = True

    @inbox.on("order.*", source="hookmesh")
    async def book(event: Event[Any]) -> None:
        if is_locked:
            raise PermanentError("the account is locked")

    async with run_inbox(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 500
        job = (await bench.jobs())["evt_1/book"]
        assert await bench.store.requeue(int(job.id), ACT)
        await bench.wait_until_idle()
        assert (await send(bench, hookmesh_webhook()))[0] == 202
        statuses = {name: job.status for name, job in (await bench.jobs()).items()}
        assert statuses == {"evt_1/note": JobStatus.DONE, "evt_1/book": JobStatus.FAILED}


async def test_a_failed_job_without_its_handler_gets_a_503(database_url: str) -> None:
    webhook = hookmesh_webhook(is_broken=True)
    async with receive_only(noting_inbox(), database_url) as bench:
        assert (await send(bench, webhook))[0] == 500
    async with receive_only(inline_inbox(), database_url) as bench:
        status, body = await send(bench, webhook)
        assert (status, body["error"]) == (503, "no_handler")


async def test_a_held_event_does_not_run(database_url: str) -> None:
    inbox = Inbox()
    inbox.source("partner", preset="hmac", secrets=[SECRET], mode="inline", duplicate_body="hold")
    calls: list[str] = []

    @inbox.on("*", source="partner")
    async def note(event: Event[Any]) -> None:
        calls.append(event.id)

    body = b'{"type":"order.paid"}'
    first, second = (
        SignedWebhook(
            "partner", body, JSON | {"x-event-id": name, "x-signature": digest(SECRET, body)}
        )
        for name in ("evt_1", "evt_2")
    )
    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, first))[1]["status"] == "processed"
        assert (await send(bench, second))[0] == 202
        assert (await bench.job("evt_2")).failure_type == "held"
    assert calls == ["evt_1"]


async def test_an_app_without_a_worker_has_no_warning(database_url: str) -> None:
    async with receive_only(noting_inbox(), database_url) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 200
        await bench.service._watch.refresh()
        assert await bench.warnings() == []


async def test_a_requeue_without_a_worker_is_a_warning_until_one_runs(database_url: str) -> None:
    webhook = hookmesh_webhook(is_broken=True)
    body = {"actor": "ann", "reason": "the order exists now"}
    async with receive_only(noting_inbox(), database_url) as bench:
        assert (await send(bench, webhook))[0] == 500
        await bench.service._watch.refresh()
        assert await bench.warnings() == []
        path = f"/admin/jobs/{(await bench.job()).id}/requeue"
        requeued = (await bench._http.post(path, json=body)).json()
        assert requeued["note"].startswith("No live worker runs handler 'note': the job waits")
        assert (await send(bench, webhook))[0] == 202
        await bench.service._watch.refresh()
        (warning,) = await bench.warnings()
        assert warning.startswith("Jobs are queued for handlers of inline sources, and no worker")
    async with run_inbox(noting_inbox(), database_url) as bench:
        await eventually_async(bench.store.live_workers, "the worker is alive")
        await bench.wait_until_idle()
        path = f"/admin/jobs/{(await bench.job()).id}/requeue"
        assert (await bench._http.post(path, json=body)).json()["note"] is None
        await bench.service._watch.refresh()
        assert await bench.warnings() == []


async def test_a_mounted_inbox_processes_on_either_store(database_url: str) -> None:
    inbox = inline_inbox(database_url)

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})

    transport = httpx.ASGITransport(app=inbox.asgi())
    webhook = hookmesh_webhook()
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as http:
        response = await http.post(
            "/webhooks/hookmesh", content=webhook.body, headers=webhook.headers
        )
    await inbox._mount().close()
    assert response.json() == {"status": "processed", "event_id": "evt_1"}
    assert notes(database_url) == ["evt_1"]


@pytest.mark.parametrize("secret_in", ["message", "cause"])
async def test_the_reason_shows_no_secret(database_url: str, secret_in: str) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def call(event: Event[Any]) -> None:
        if secret_in == "message":
            raise PermanentError(f"refused: {SECRET}")
        raise ValueError(SECRET)

    async with receive_only(inbox, database_url, show_error_values=True) as bench:
        status, body = await send(bench, hookmesh_webhook())
        assert status == 500
        assert SECRET not in json.dumps(body)


async def test_on_sqlite_a_handler_that_idles_in_its_transaction_fails(sqlite_url: str) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})
        await asyncio.sleep(5)

    async with receive_only(inbox, sqlite_url) as bench, asyncio.timeout(4):
        status, body = await send(bench, hookmesh_webhook())
        assert status == 500
        assert "waited over 250 ms with SQLite's only write transaction open" in body["message"]
    assert notes(sqlite_url) == []


async def test_an_outside_call_is_refused(database_url: str) -> None:
    inbox = inline_inbox()
    calls: list[str] = []

    @inbox.on("order.*", source="hookmesh")
    async def pay(event: Event[Any], effects: Effects) -> None:
        await effects.call(f"pay:{event.id}", calls.append, "paid")

    async with receive_only(inbox, database_url) as bench:
        status, body = await send(bench, hookmesh_webhook())
        assert status == 500
        assert 'effects.call is not for a source with mode="inline"' in body["message"]
        assert await bench.effects() == []
    assert calls == []


async def test_the_document_has_the_responses_of_inline_sources(database_url: str) -> None:
    async with receive_only(noting_inbox(), database_url) as bench:
        document = (await bench._http.get("/openapi.json")).json()
    responses = document["paths"]["/webhooks/{source}"]["post"]["responses"]
    bodies = responses["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert {"$ref": "#/components/schemas/Processed"} in bodies
    assert responses["500"] == {"$ref": "#/components/responses/Error500"}
    states = document["components"]["schemas"]["Processed"]["anyOf"][0]["properties"]["status"]
    assert states["enum"] == ["processed", "already_processed", "ignored", "accepted"]


async def test_a_request_with_many_events_does_not_delay_another_source(postgres_url: str) -> None:
    gate = Gate()
    inbox = noting_inbox()
    inbox.source("gocardless", secrets=[SECRET], mode="inline")

    @inbox.on("*", source="gocardless")
    async def wait(event: Event[Any]) -> None:
        await gate.pass_through()

    async with receive_only(inbox, postgres_url, inline_timeout_seconds=60.0) as bench:
        ids = [f"EV{number}" for number in range(1000)]
        batch = asyncio.create_task(send(bench, events_webhook(*ids)))
        await gate.wait_for(1)
        async with asyncio.timeout(10):
            answers = [await send(bench, hookmesh_webhook(f"evt_{n}")) for n in range(5)]
        gate.opened.set()
        await batch
    assert {status for status, _ in answers} == {200}
