"""What the log and the sender learn about an inline source when a handler does not succeed."""

import asyncio
import itertools
import logging
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import HTTPException

import onceward.service
from onceward import Event, Inbox, PermanentError, RetryLater, Transaction
from onceward.runtime import timeouts
from support.processes import eventually_async
from tests.inline_sources import INSERT, SECRET, hookmesh_webhook, inline_inbox
from tests.inprocess import RunningInbox, receive_only
from tests.integration.running import JSON, SignedWebhook, digest

TOO_SLOW = 'shorten it, raise the setting, or use mode="background"'


async def send(bench: RunningInbox, webhook: SignedWebhook) -> httpx.Response:
    path = f"/webhooks/{webhook.source}"
    return await bench._http.post(path, content=webhook.body, headers=webhook.headers)


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if text in record.getMessage()]


def failing_inbox(error: BaseException, **settings: Any) -> Inbox:
    """Return an inbox whose handler raises an error unless the payload is fixed."""
    inbox = inline_inbox(**settings)

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        if not event.payload.get("is_fixed"):
            raise error
        await tx.execute(INSERT, {"text": event.id})

    return inbox


async def test_a_retry_with_another_body_is_named_in_the_log(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = failing_inbox(PermanentError("no such order"))
    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook(attempt=1))).status_code == 500
        retry = await send(bench, hookmesh_webhook(attempt=2))
        assert (retry.status_code, retry.json()["conflict"]) == (202, True)
        job = await bench.job()
    (line,) = lines(caplog, "its retry differs in its body")
    assert line.getMessage() == (
        "source 'hookmesh': event evt_1 failed, and its retry differs in its body: it is a "
        "conflict, was not run and got 202, so the sender stops; requeue job "
        f"{job.id} to run the first body, or accept the delivery to run this one. If a field "
        "changes with each retry, name it in volatile_fields of the source"
    )
    assert (line.levelname, line.name) == ("WARNING", "onceward.work")
    fields = vars(line)
    assert (fields["source"], fields["event_id"], fields["outcome"]) == (
        "hookmesh",
        "evt_1",
        "conflict",
    )
    assert (fields["job"], fields["handler"]) == (int(job.id), "note")


async def test_a_conflict_with_an_event_that_is_done_is_not_a_failure(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = failing_inbox(PermanentError("no such order"))
    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook(is_fixed=True))).status_code == 200
        assert (await send(bench, hookmesh_webhook(attempt=2))).status_code == 202
    assert lines(caplog, "differs in its body") == []


async def test_a_retry_whose_volatile_field_changes_runs_the_handlers(database_url: str) -> None:
    failures = [PermanentError("not yet")]
    inbox = Inbox()
    options: Any = {"scheme": "body", "secrets": [SECRET], "mode": "inline"}
    inbox.source("hookmesh", volatile_fields=["attempt"], **options)

    @inbox.on("order.paid", source="hookmesh")
    async def note() -> None:
        if failures:
            raise failures.pop()

    async with receive_only(inbox, database_url) as bench:
        assert (await send(bench, hookmesh_webhook(attempt=1))).status_code == 500
        retry = await send(bench, hookmesh_webhook(attempt=2))
    assert (retry.status_code, retry.json()["status"]) == (200, "processed")


async def test_the_status_of_a_raised_http_exception_is_not_used(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with receive_only(failing_inbox(HTTPException(409, "taken")), database_url) as bench:
        for _ in range(2):
            assert (await send(bench, hookmesh_webhook())).status_code == 500
    (line,) = lines(caplog, "raised an HTTPException")
    assert "whose status is not used: the sender got 500" in line.getMessage()
    assert "accepted before" not in line.getMessage()


async def test_a_requested_delay_is_sent_as_retry_after(database_url: str) -> None:
    errors = [RetryLater(60, "the bank is closed"), RetryLater(0.2), RetryLater(0), ValueError("x")]
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note() -> None:
        raise errors.pop(0)

    async with receive_only(inbox, database_url) as bench:
        answers = [await send(bench, hookmesh_webhook()) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [500] * 4
    assert [answer.headers.get("retry-after") for answer in answers] == ["60", "1", None, None]
    assert answers[0].json() == {"error": "Processing failed", "message": "the bank is closed"}


def slow_inbox(**options: Any) -> Inbox:
    """Return an inbox whose handler never returns by itself."""
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh", **options)
    async def slow() -> None:
        await asyncio.Event().wait()

    return inbox


@pytest.mark.parametrize(
    ("options", "settings", "limit"),
    [
        (
            {},
            {"inline_timeout_seconds": 0.3},
            f"0.3 s (inline_timeout_seconds): {TOO_SLOW}",
        ),
        ({"timeout_seconds": 0.2}, {}, "0.2 s (timeout_seconds)"),
        ({}, {"handler_timeout_seconds": 0.2}, "0.2 s (handler_timeout_seconds)"),
    ],
)
async def test_the_error_of_a_slow_handler_names_the_limit_that_applied(
    sqlite_url: str, options: dict[str, Any], settings: dict[str, Any], limit: str
) -> None:
    async with receive_only(slow_inbox(**options), sqlite_url, **settings) as bench:
        answer = await send(bench, hookmesh_webhook())
        job = await bench.job()
    assert answer.json()["message"] == f"slow took longer than {limit}"
    assert job.last_error == f"slow took longer than {limit}"


async def test_a_later_handler_has_the_rest_of_the_time(sqlite_url: str) -> None:
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def first() -> None:
        await asyncio.sleep(0.3)

    @inbox.on("order.*", source="hookmesh")
    async def second() -> None:
        await asyncio.Event().wait()

    async with receive_only(inbox, sqlite_url, inline_timeout_seconds=0.6) as bench:
        answer = await send(bench, hookmesh_webhook())
    assert " s (the rest of inline_timeout_seconds): shorten it" in answer.json()["message"]


def test_a_timeout_above_the_limit_of_a_request_is_named_at_start(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = slow_inbox(timeout_seconds=30)

    @inbox.on("order.*", source="ingest", timeout_seconds=30)
    async def other() -> None: ...

    @inbox.on("order.*", source="hookmesh")
    async def unset() -> None: ...

    inbox.service({"database_url": sqlite_url})
    (line,) = lines(caplog, "inline_timeout_seconds")
    assert line.getMessage().startswith("handler 'slow' (")
    assert "timeout_seconds is 30, but within a request the handler ends after at most 8 s" in (
        line.getMessage()
    )


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        (
            "hookmesh",
            ["Senders get 503 for its events, and", "or raise inline_timeout_seconds;"],
        ),
        (
            None,
            [
                "Its jobs stay queued, and the senders of inline sources get 503, and",
                "or raise timeout_seconds and inline_timeout_seconds;",
            ],
        ),
    ],
)
async def test_a_process_without_a_worker_reports_calls_that_do_not_end(
    sqlite_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    source: str | None,
    advice: list[str],
) -> None:
    monkeypatch.setattr(timeouts, "GRACE_SECONDS", 0.05)
    inbox = inline_inbox()
    release = asyncio.Event()

    @inbox.on("order.*", source=source)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    settings = {"inline_timeout_seconds": 0.2, "workers": 1}
    async with receive_only(inbox, sqlite_url, **settings) as bench:
        assert (await send(bench, hookmesh_webhook())).status_code == 500
        paused = await send(bench, hookmesh_webhook())
        assert (paused.status_code, paused.json()["error"]) == (503, "paused")
        release.set()
    (line,) = lines(caplog, "of its timed-out calls still run")
    assert line.levelname == "ERROR"
    assert [text for text in advice if text not in line.getMessage()] == []


@pytest.fixture
def frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for types that no handler wants all the time."""
    monkeypatch.setattr(onceward.service, "IGNORED_INTERVAL_SECONDS", 0.05)


TRUNCATED = b'{"event_id": "evt_1", "event_type": "order.paid"'
NOT_JSON = "but the body is not JSON: correct the sender, or write @inbox.on("
ABSENT = "which is absent: set type= on the source"


UNTYPED = {"truncated": (TRUNCATED, NOT_JSON), "untyped": (b'{"event_id": "evt_1"}', ABSENT)}


@pytest.mark.usefixtures("frequent_reports")
async def test_the_log_says_that_a_body_without_a_type_is_not_json(
    database_url: str, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    async def reports(source: str) -> list[logging.LogRecord]:
        return lines(caplog, f"source '{source}': events without a type match no handler")

    inbox, sources = Inbox(), {}
    for (name, case), mode in itertools.product(UNTYPED.items(), ("inline", "background")):
        sources[f"{name}-{mode}"] = (*case, 200 if mode == "inline" else 202)
        options: Any = {"preset": "hmac", "secrets": [SECRET], "id": "header:X-Id", "mode": mode}
        inbox.source(f"{name}-{mode}", type="json:event_type", **options)

    @inbox.on("order.paid")
    async def note() -> None: ...

    async with receive_only(inbox, database_url) as bench:
        for source, (body, _, status) in sources.items():
            headers = JSON | {"x-id": "evt_1", "x-signature": digest(SECRET, body)}
            answer = await send(bench, SignedWebhook(source, body, headers))
            assert answer.status_code == status, source
        for source, (_, reason, _) in sources.items():
            with subtests.test(source):
                (line,) = await eventually_async(partial(reports, source), "it is reported")
                read = "the source reads the type from json:event_type"
                assert f"{read}, {reason}" in line.getMessage()
        assert await bench.jobs() == {}
