"""What an inline request answers and records when it cannot commit, or may not run."""

import asyncio
import json
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest

from onceward import Effects, Event, PermanentError, Transaction
from onceward.errors import StoreUnavailable
from onceward.model.admin import PageQuery
from onceward.model.jobs import JobStatus
from support.database import RawDatabase
from tests.inline_sources import (
    INSERT,
    SECRET,
    events_webhook,
    hookmesh_webhook,
    inline_inbox,
    noting_inbox,
    send,
)
from tests.inprocess import notes, receive_only
from tests.integration.running import JSON, SignedWebhook, digest

pytestmark = pytest.mark.every_store

EVERYTHING = PageQuery(limit=100)
UNAVAILABLE = {"error": "unavailable", "message": "The ledger is unavailable. Retry later."}


async def test_another_body_under_the_id_of_a_failed_event_does_not_run(database_url: str) -> None:
    async with receive_only(noting_inbox(), database_url) as bench:
        assert (await send(bench, hookmesh_webhook(is_broken=True)))[0] == 500
        status, receipt = await send(bench, hookmesh_webhook())
        assert (status, receipt["conflict"]) == (202, True)
        job = await bench.job()
        assert (job.status, job.attempts) == (JobStatus.FAILED, 1)
    assert notes(database_url) == []


async def test_a_handler_of_another_source_does_not_run(database_url: str) -> None:
    inbox = noting_inbox()
    inbox.source("gocardless", secrets=[SECRET], mode="inline")
    calls: list[str] = []

    @inbox.on("order.*", source="gocardless")
    async def ship(event: Event[Any]) -> None:
        calls.append(event.id)

    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 200
        assert list(await bench.jobs()) == ["evt_1/note"]
    assert calls == []


async def test_a_request_of_which_an_event_is_left_to_a_worker_gets_a_202(
    database_url: str,
) -> None:
    inbox, elsewhere = inline_inbox(), inline_inbox()
    for each in (inbox, elsewhere):
        each.source("gocardless", secrets=[SECRET], mode="inline")

    @elsewhere.on("*", source="gocardless")
    async def ship(event: Event[Any]) -> None:
        pass

    async with receive_only(elsewhere, database_url):
        pass  # its routes stay
    async with receive_only(inbox, database_url) as bench:
        status, body = await send(bench, events_webhook("EV1", "EV2"))
    assert status == 202
    assert [event["status"] for event in body["events"]] == ["accepted", "accepted"]


async def test_of_two_bodies_under_one_id_in_a_request_the_second_is_a_conflict(
    database_url: str,
) -> None:
    inbox = inline_inbox()
    inbox.source("gocardless", secrets=[SECRET], mode="inline")
    actions: list[str] = []

    @inbox.on("*", source="gocardless")
    async def note(event: Event[Any]) -> None:
        actions.append(event.payload["action"])

    event = {"id": "EV1", "resource_type": "payments"}
    events = [{**event, "action": "paid"}, {**event, "action": "failed"}]
    body = json.dumps({"events": events}).encode()
    headers = JSON | {"webhook-signature": digest(SECRET, body)}
    async with receive_only(inbox, database_url) as bench:
        status, answer = await send(bench, SignedWebhook("gocardless", body, headers))
    assert status == 202
    assert [each["status"] for each in answer["events"]] == ["processed", "accepted"]
    assert actions == ["paid"]


async def test_a_commit_that_a_constraint_refuses_fails_all_handlers(postgres_url: str) -> None:
    inbox = noting_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def also(event: Event[Any]) -> None:
        pass

    raw_db = RawDatabase(postgres_url)
    async with receive_only(inbox, postgres_url) as bench:
        raw_db.rows(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN RAISE EXCEPTION ''no such account''; END'"
        )
        raw_db.rows(
            "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        status, body = await send(bench, hookmesh_webhook())
        assert (status, body["error"]) == (500, "Processing failed")
        jobs = await bench.jobs()
        assert {(job.status, job.attempts) for job in jobs.values()} == {(JobStatus.FAILED, 1)}
        assert {job.last_error for job in jobs.values()} == {body["message"]}
    assert notes(postgres_url) == []


async def test_a_handler_that_loses_its_connection_is_not_blamed(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    async with receive_only(inbox, postgres_url) as bench:
        assert await send(bench, hookmesh_webhook()) == (503, UNAVAILABLE)
        assert await bench.store.events(EVERYTHING) == []
    assert "connection" in caplog.text


@pytest.mark.parametrize("then", ["a statement", "its return", "its timeout"])
async def test_a_handler_whose_process_was_frozen_is_not_blamed(
    postgres_url: str, then: str
) -> None:
    """PostgreSQL has ended its idle transaction when the process goes on."""
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})
        await tx.execute("SET LOCAL idle_in_transaction_session_timeout = '10ms'")
        await asyncio.sleep(0.2)
        if then == "a statement":
            await tx.execute(INSERT, {"text": "after"})
        if then == "its timeout":
            await asyncio.sleep(10)

    async with receive_only(inbox, postgres_url, inline_timeout_seconds=1.5) as bench:
        assert await send(bench, hookmesh_webhook()) == (503, UNAVAILABLE)
        assert await bench.store.events(EVERYTHING) == []
    assert notes(postgres_url) == []


async def test_a_handler_that_always_loses_its_connection_is_recorded_as_failed(
    postgres_url: str,
) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    async with receive_only(inbox, postgres_url) as bench:
        statuses = [(await send(bench, hookmesh_webhook()))[0] for _ in range(4)]
        assert statuses == [503, 503, 503, 500]
        job = await bench.job()
        assert (job.status, job.failure_type, job.attempts) == (JobStatus.FAILED, "inline", 1)


async def test_a_failure_that_cannot_be_recorded_is_still_a_failure(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    webhook = hookmesh_webhook(is_broken=True)
    async with receive_only(noting_inbox(), database_url) as bench:
        assert (await send(bench, webhook))[0] == 500
        monkeypatch.setattr(bench.store, "fail_inline", refuse)
        status, body = await send(bench, webhook)
    assert (status, body["message"]) == (500, "no such order")
    assert "a failure within a request could not be recorded: the disk is full" in caplog.text
    assert "failed within the request, attempt 2: no such order" in caplog.text


async def test_the_sender_sees_no_values_even_if_the_ledger_shows_them(database_url: str) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any]) -> None:
        raise ValueError("'4711' is unknown at https://bank.internal/accounts")

    async with receive_only(inbox, database_url, show_error_values=True) as bench:
        status, body = await send(bench, hookmesh_webhook())
        assert status == 500
        assert "4711" in ((await bench.job()).last_error or "")
    assert "4711" not in body["message"]
    assert "bank.internal" not in body["message"]


async def test_a_ledger_that_is_down_is_a_503(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise StoreUnavailable("connection refused at 10.0.0.7")

    async with receive_only(noting_inbox(), database_url) as bench:
        monkeypatch.setattr(bench.store, "lock_events", refuse)
        assert await send(bench, hookmesh_webhook()) == (503, UNAVAILABLE)


async def test_a_failed_attempt_has_the_time_that_its_handler_took(database_url: str) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any]) -> None:
        await asyncio.sleep(0.1)
        raise PermanentError("no such order")

    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 500
        detail = await bench.store.job(int((await bench.job()).id), attempts=1)
    assert detail is not None
    (attempt,) = detail.failed_attempts
    assert (attempt.ended_at - attempt.started_at).total_seconds() >= 0.1


async def test_a_handler_that_another_process_retired_gets_a_503(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    retiring = inline_inbox()
    retiring.retire("note")
    async with receive_only(noting_inbox(), postgres_url) as bench:
        assert (await send(bench, hookmesh_webhook("evt_1")))[0] == 200
        async with receive_only(retiring, postgres_url):
            pass
        status, body = await send(bench, hookmesh_webhook("evt_2"))
        assert (status, body["error"]) == (503, "unavailable")
    assert "another process retired the handler" in caplog.text
    assert notes(postgres_url) == ["evt_1"]


async def test_the_effects_of_two_handlers_belong_to_their_own_jobs(database_url: str) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def credit(event: Event[Any], effects: Effects) -> None:
        assert await effects.once("credit")

    @inbox.on("order.*", source="hookmesh")
    async def ship(event: Event[Any], effects: Effects) -> None:
        assert await effects.once("ship")

    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 200
        jobs = {job.handler: job.id for job in (await bench.jobs()).values()}
        assert {effect.idempotency_key: effect.job_id for effect in await bench.effects()} == jobs


async def test_a_redelivery_shows_the_time_of_the_first_delivery(database_url: str) -> None:
    inbox = inline_inbox()
    times: list[datetime] = []

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any]) -> None:
        times.append(event.received_at)
        if len(times) < 3:
            raise PermanentError("no such order")

    async with receive_only(inbox, database_url) as bench:
        statuses = [(await send(bench, hookmesh_webhook()))[0] for _ in range(3)]
        (event,) = await bench.store.events(EVERYTHING)
    assert statuses == [500, 500, 200]
    assert times[1:] == [event.received_at] * 2


async def test_a_handler_that_swallows_a_failed_statement_commits_nothing(
    database_url: str,
) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})
        with suppress(Exception):
            await tx.execute("INSERT INTO missing (text) VALUES ('x')")

    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook()))[0] == 500
        assert "missing" in ((await bench.job()).last_error or "")
    assert notes(database_url) == []


async def test_a_statement_that_a_handler_does_not_await_fails_it(database_url: str) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        tx.execute(INSERT, {"text": event.id})  # type: ignore[unused-coroutine]

    async with receive_only(inbox, database_url) as bench:
        status, body = await send(bench, hookmesh_webhook())
    assert status == 500
    assert "await" in body["message"]
    assert notes(database_url) == []
