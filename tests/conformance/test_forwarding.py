"""Forwards: each event reaches another app under one id, and no outcome is guessed."""

import asyncio
import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import product
from typing import Any, Final

import pytest

import onceward
from onceward import Effects, Event, Inbox
from onceward.model.admin import JobItem
from onceward.model.effects import EffectStatus
from onceward.model.jobs import FailureType, JobStatus
from onceward.work.forwarding.message import message_id
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import make_event
from tests.inprocess import RunningInbox, run_inbox
from tests.outside import begin_long_ago, pass_deadline
from tests.receiver import (
    OK,
    OTHER_SECRET,
    SECRET,
    Received,
    Respond,
    close,
    forwarding_inbox,
    receiving,
    response,
    say_nothing,
)

PAYLOAD = {"order": 7}


def end_window(raw_db: RawDatabase) -> None:
    """Let the deadline of every call pass, and the time in which it may be repeated."""
    begin_long_ago(raw_db)
    pass_deadline(raw_db)


def closing_after(change: Callable[[RawDatabase], None], raw_db: RawDatabase) -> Respond:
    """Return a response that changes the ledger, and closes the connection."""

    async def respond(_: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(change, raw_db)

    return respond


def effect_text(raw_db: RawDatabase) -> str:
    """Return all that the ledger stores about effects and jobs, as text."""
    effects = raw_db.rows("SELECT function, status, result, error_message FROM onceward.effects")
    jobs = raw_db.rows("SELECT last_error FROM onceward.jobs")
    return f"{effects} {jobs}"


def key_of(request: Received) -> str:
    """Return the key under which the ledger has the effect of a request."""
    return f"onceward:{request.id}"


async def test_an_event_is_forwarded_once(database_url: str, raw_db: RawDatabase) -> None:
    async with (
        receiving() as receiver,
        run_inbox(forwarding_inbox(receiver), database_url) as bench,
    ):
        await bench.post("invoice.paid", PAYLOAD, "evt_0")
        job = await bench.run_event("order.placed", PAYLOAD)
        await bench.post("order.placed", PAYLOAD)  # a redelivery
        (effect,) = await bench.effects()
    (request,) = receiver.requests
    assert job.status is JobStatus.DONE
    assert request.event["type"] == "order.placed"
    assert request.event["data"] == {
        "key": "ingest:evt_1",
        "source": "ingest",
        "id": "evt_1",
        "reference": None,
        "payload": PAYLOAD,
    }
    received_at = datetime.fromisoformat(request.event["timestamp"])
    assert abs(datetime.now(UTC) - received_at) < timedelta(minutes=5)
    assert (effect.status, effect.idempotency_key) == (EffectStatus.SUCCEEDED, key_of(request))
    assert effect.function == f"forward-127.0.0.1:{receiver.port}"
    assert raw_db.value("SELECT result FROM onceward.effects") == '{"status":200}'
    assert "hidden" not in effect_text(raw_db)


async def test_a_second_inbox_accepts_what_the_first_forwards(
    database_url: str, sqlite_url: str
) -> None:
    got: list[Any] = []
    second = Inbox(f"{sqlite_url}.second")
    second.source("orders", preset="standard-webhooks", secrets=[OTHER_SECRET])

    @second.on("order.*", source="orders")
    async def keep(event: Event[Any]) -> None:
        got.append((event.id, event.type, event.payload["data"]["payload"]))

    async with receiving() as receiver, run_inbox(second, f"{sqlite_url}.second") as bench:
        async with run_inbox(
            forwarding_inbox(receiver, secret=[SECRET, OTHER_SECRET]), database_url
        ) as first:
            await first.run_event("order.placed", PAYLOAD)
        (request,) = receiver.requests
        for duplicate in (False, True):
            answer = await bench.deliver("/webhooks/orders", request.body, request.headers)
            assert answer.status_code == 202, answer.text
            assert answer.json()["duplicate"] is duplicate
        tampered = request.body.replace(b"7", b"8")
        refused = await bench.deliver("/webhooks/orders", tampered, request.headers)
        assert refused.status_code == 401
        await bench.wait_until_idle()
    assert got == [(request.id, "order.placed", PAYLOAD)]


async def test_a_body_that_is_not_json_is_forwarded(database_url: str) -> None:
    async with receiving() as receiver:
        inbox = forwarding_inbox(receiver, "*")
        inbox.source("shop", preset="hmac", secrets=["a-long-secret"], type="header:x-type")
        signed = onceward.sign("hmac", secret="a-long-secret", body=b"<order/>")
        headers = {**signed.headers, "x-event-id": "1", "x-type": "a", "content-type": "text/xml"}
        async with run_inbox(inbox, database_url) as bench:
            answer = await bench.deliver("/webhooks/shop", b"<order/>", headers)
            assert answer.status_code == 202, answer.text
            await bench.wait_until_idle()
    data = receiver.requests[0].event["data"]
    assert (base64.b64decode(data["body_base64"]), data["content_type"]) == (
        b"<order/>",
        "text/xml",
    )


REFUSALS: Final = {
    "500": response(500, body=b"a long story"),
    "404": response(404),
    "400": response(400),
    "redirect": response(302, "location: https://evil.example/?token=hidden"),
    "soon": response(503, "retry-after: soon"),
    "negative": response(503, "retry-after: -1"),
    "past": response(503, "retry-after: Wed, 21 Oct 2015 07:28:00 GMT"),
}


async def test_a_status_other_than_2xx_is_retried_under_the_same_id(
    sqlite_url: str, subtests: pytest.Subtests
) -> None:
    async with (
        receiving() as receiver,
        run_inbox(forwarding_inbox(receiver), sqlite_url) as bench,
    ):
        for name, refusal in REFUSALS.items():
            with subtests.test(name):
                receiver.requests.clear()
                receiver.responses = [refusal, refusal, OK]
                await bench.post("order.placed", PAYLOAD, name)
                await bench.wait_until_idle()
                job = await bench.job(name)
                (effect,) = [each for each in await bench.effects() if each.job_id == job.id]
                assert (job.status, job.attempts) == (JobStatus.DONE, 3)
                assert (effect.status, effect.call_no) == (EffectStatus.SUCCEEDED, 3)
                assert len(receiver.requests) == 3
                assert len({request.id for request in receiver.requests}) == 1
                assert len({request.body for request in receiver.requests}) == 1


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (response(500, body=b"hidden"), "127.0.0.1 responded 500"),
        (
            response(302, "location: /hidden"),
            "127.0.0.1 responded 302; redirects are not followed: correct to=",
        ),
        (
            response(410),
            "127.0.0.1 responded 410: it wants no more events; remove the forward",
        ),
    ],
)
async def test_a_refusal_names_host_and_status(
    database_url: str, raw_db: RawDatabase, refusal: bytes, error: str
) -> None:
    async with (
        receiving(refusal) as receiver,
        run_inbox(forwarding_inbox(receiver), database_url) as bench,
    ):
        job = await bench.run_event("order.placed", PAYLOAD)
        (effect,) = await bench.effects()
    is_gone = b"410" in refusal
    assert job.failure_type == (FailureType.PERMANENT if is_gone else FailureType.EXHAUSTED)
    assert len(receiver.requests) == (1 if is_gone else 3)
    assert (job.last_error, effect.error_message) == (error, error)
    assert effect.status is EffectStatus.FAILED
    assert "hidden" not in effect_text(raw_db)


async def test_a_receiver_may_ask_for_time(sqlite_url: str, subtests: pytest.Subtests) -> None:
    in_two_hours = datetime.now(UTC) + timedelta(seconds=7200)
    texts = {
        "seconds": "7200",
        "date": format_datetime(in_two_hours, usegmt=True),
        "too long": "9" * 4000,
    }
    async with (
        receiving() as receiver,
        run_inbox(forwarding_inbox(receiver), sqlite_url) as bench,
    ):
        for (kind, text), status in product(texts.items(), (429, 503)):
            with subtests.test(event_id := f"{kind}, {status}"):
                receiver.responses = [response(status, f"retry-after: {text}")]
                await bench.post("order.placed", PAYLOAD, event_id)
                job = await failed_once(bench, event_id)
                delay = (job.available_at - datetime.now(UTC)).total_seconds()
                limit = 366 * 86_400 if kind == "too long" else 7200
                assert limit - 120 < delay <= limit + 1
                expected = f"127.0.0.1 responded {status} and asked to wait"
                assert str(job.last_error).startswith(expected)


async def failed_once(bench: RunningInbox, event_id: str) -> JobItem:
    """Wait until an attempt of the job of an event has failed, and return the job."""

    async def failed() -> JobItem | None:
        job = await bench.job(event_id)
        return job if job.last_error is not None else None

    job = await eventually_async(failed, "an attempt has failed")
    assert job is not None
    return job


async def test_a_lost_response_is_repeated_under_the_same_id(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with (
        receiving(closing_after(pass_deadline, raw_db), OK) as receiver,
        run_inbox(forwarding_inbox(receiver), database_url) as bench,
    ):
        job = await bench.run_event("order.placed", PAYLOAD)
        (effect,) = await bench.effects()
    assert job.status is JobStatus.DONE
    assert (effect.status, effect.call_no) == (EffectStatus.SUCCEEDED, 2)
    assert [request.id for request in receiver.requests] == [
        effect.idempotency_key.removeprefix("onceward:")
    ] * 2


async def test_a_receiver_that_never_responds_is_left(database_url: str) -> None:
    async with receiving(say_nothing) as receiver:
        inbox = forwarding_inbox(receiver, timeout_seconds=0.3, max_attempts=1)
        async with run_inbox(inbox, database_url) as bench:
            job = await bench.run_event("order.placed", PAYLOAD)
    assert job.failure_type is FailureType.UNKNOWN_OUTCOME
    assert "did not return within 0." in str(job.last_error)


async def test_without_a_window_a_person_decides(database_url: str, raw_db: RawDatabase) -> None:
    async with receiving(close, OK) as receiver:
        inbox = forwarding_inbox(receiver, retry_safe_for=None, timeout_seconds=5)
        async with run_inbox(inbox, database_url) as bench:
            job = await bench.run_event("order.placed", PAYLOAD)
            (effect,) = await bench.effects()
    assert job.failure_type is FailureType.UNKNOWN_OUTCOME
    assert effect.status is EffectStatus.UNKNOWN
    assert len(receiver.requests) == 1
    assert "127.0.0.1 did not respond" in str(job.last_error)
    assert "hidden" not in effect_text(raw_db)


async def test_after_the_window_a_person_decides(database_url: str, raw_db: RawDatabase) -> None:
    async with (
        receiving(closing_after(end_window, raw_db), OK) as receiver,
        run_inbox(forwarding_inbox(receiver), database_url) as bench,
    ):
        job = await bench.run_event("order.placed", PAYLOAD)
    assert job.failure_type is FailureType.UNKNOWN_OUTCOME
    assert "the time in which it may be repeated is over" in str(job.last_error)
    assert len(receiver.requests) == 1


async def test_a_refusal_after_a_lost_response_says_nothing_about_it(
    database_url: str, raw_db: RawDatabase
) -> None:
    async def refuse(writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(pass_deadline, raw_db)
        writer.write(response(500))

    async with (
        receiving(closing_after(pass_deadline, raw_db), refuse) as receiver,
        run_inbox(forwarding_inbox(receiver), database_url) as bench,
    ):
        job = await bench.run_event("order.placed", PAYLOAD)
    assert job.failure_type is FailureType.UNKNOWN_OUTCOME
    assert len(receiver.requests) == 3


async def test_the_intent_is_committed_before_the_request(
    database_url: str, raw_db: RawDatabase
) -> None:
    found: list[Any] = []

    async def look(writer: asyncio.StreamWriter) -> None:
        statement = "SELECT idempotency_key, status FROM onceward.effects"
        found.extend(await asyncio.to_thread(raw_db.rows, statement))
        writer.write(OK)

    async with (
        receiving(look) as receiver,
        run_inbox(forwarding_inbox(receiver), database_url) as bench,
    ):
        await bench.run_event("order.placed", PAYLOAD)
    assert found == [(key_of(receiver.requests[0]), "pending")]


@pytest.mark.parametrize("call", [False, True], ids=["once", "call"])
async def test_no_other_event_can_take_the_key_of_a_forward(
    database_url: str, *, call: bool
) -> None:
    async with receiving() as receiver:
        inbox = forwarding_inbox(receiver, name="billing")

        @inbox.on("note")
        async def note(event: Event[Any], effects: Effects) -> None:
            key = event.payload["key"]  # as the sender chose it
            await (effects.call(key, _do_nothing) if call else effects.once(key))

        order = make_event("ingest")
        stolen = message_id("billing", order)
        async with run_inbox(inbox, database_url) as bench:
            await bench.post("note", {"key": stolen}, "evt_2")
            await bench.post("note", {"key": f"onceward:{stolen}"}, "evt_3")
            await bench.wait_until_idle()
            await bench.post("order.placed", PAYLOAD, order.id)
            await bench.wait_until_idle()
            jobs = await bench.jobs()
    assert {name: job.status for name, job in jobs.items()} == {
        "evt_1/billing": JobStatus.DONE,
        "evt_2/note": JobStatus.DONE,
        "evt_3/note": JobStatus.FAILED,
    }
    assert "keys that begin with onceward: are reserved" in str(jobs["evt_3/note"].last_error)
    assert [request.id for request in receiver.requests] == [stolen]


async def test_two_forwards_have_ids_of_their_own(database_url: str) -> None:
    async with receiving() as receiver:
        inbox = forwarding_inbox(receiver, name="billing")
        inbox.forward("*", to=receiver.url, secret=SECRET, name="shipping", allow_private=True)
        async with run_inbox(inbox, database_url) as bench:
            await bench.post("order.placed", PAYLOAD)
            await bench.wait_until_idle()
            functions = {effect.function for effect in await bench.effects()}
    assert functions == {"billing", "shipping"}
    assert len({request.id for request in receiver.requests}) == 2


async def test_only_events_of_the_source_are_forwarded(database_url: str) -> None:
    async with receiving() as receiver:
        inbox = forwarding_inbox(receiver, "*", source="shop")
        inbox.source("shop", preset="hmac", secrets=["a-long-secret"])
        async with run_inbox(inbox, database_url) as bench:
            await bench.post("order.placed", PAYLOAD)
            await bench.wait_until_idle()
    assert receiver.requests == []


async def test_the_list_of_handlers_shows_the_target_without_its_query(database_url: str) -> None:
    async with receiving() as receiver:
        inbox = forwarding_inbox(receiver, name="billing")
        inbox.on("a", name="other")(_do_nothing)
        async with run_inbox(inbox, database_url) as bench:
            items = await bench.items("handlers")
    targets = {item["name"]: item["forwards_to"] for item in items}
    assert targets == {"billing": receiver.url.partition("?")[0], "other": None}


async def _do_nothing() -> None:
    """Stand in for a handler."""
