"""An inline source runs its handlers within the request, and responds with their outcome."""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from onceward import Effects, Event, Inbox, PermanentError, Transaction
from support.processes import eventually
from tests.inline_sources import INSERT, hookmesh_webhook, inline_inbox
from tests.inprocess import notes
from tests.integration.conftest import Serve
from tests.integration.running import RunningInbox, SignedWebhook

PROCESSED = (200, {"status": "processed", "event_id": "evt_1"})
ALREADY = (200, {"status": "already_processed", "event_id": "evt_1"})
IGNORED = (200, {"status": "ignored", "event_id": "evt_1"})
ACT = {"actor": "ann", "reason": "the bank is back"}


def answer(response: httpx.Response) -> tuple[int, Any]:
    """Return the status and the body of a response."""
    return response.status_code, response.json()


def send_at_once(service: RunningInbox, webhooks: Sequence[SignedWebhook]) -> list[tuple[int, Any]]:
    """Send webhooks concurrently, and return their answers."""
    ready = threading.Barrier(len(webhooks))

    def send(webhook: SignedWebhook) -> tuple[int, Any]:
        ready.wait(10)
        url = f"{service.address}/webhooks/{webhook.source}"
        return answer(httpx.post(url, content=webhook.body, headers=webhook.headers, timeout=15))

    with ThreadPoolExecutor(len(webhooks)) as pool:
        return list(pool.map(send, webhooks))


def with_note(url: str, **settings: Any) -> Inbox:
    """Return an inbox whose handler writes a note for each event."""
    inbox = inline_inbox(url, **settings)

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})

    return inbox


def with_failures(url: str, failures: int, **settings: Any) -> tuple[Inbox, list[str]]:
    """Return an inbox whose handler fails at first, after its write, and the ids of its calls."""
    inbox = inline_inbox(url, **settings)
    calls: list[str] = []

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        calls.append(event.id)
        await tx.execute(INSERT, {"text": event.id})
        if len(calls) <= failures:
            raise PermanentError("no such order")

    return inbox, calls


@pytest.mark.every_transport
def test_the_same_webhook_twice_is_processed_once(database_url: str, serve: Serve) -> None:
    service = serve(with_note(database_url))
    webhook = hookmesh_webhook()
    assert answer(service.send(webhook)) == PROCESSED
    assert answer(service.send(webhook)) == ALREADY
    assert notes(database_url) == ["evt_1"]
    (job,) = service.items("jobs")
    assert (job["status"], job["attempts"], job["failure_type"]) == ("done", 1, None)
    (event,) = service.items("events")
    assert (event["processing_state"], event["deliveries"]) == ("succeeded", 2)
    assert [each["outcome"] for each in service.items("deliveries")] == ["duplicate", "recorded"]


def test_ten_at_once_are_processed_once(database_url: str, serve: Serve) -> None:
    service = serve(with_note(database_url))
    answers = send_at_once(service, [hookmesh_webhook()] * 10)
    assert Counter(map(str, answers)) == {str(PROCESSED): 1, str(ALREADY): 9}
    assert notes(database_url) == ["evt_1"]
    (event,) = service.items("events")
    assert event["deliveries"] == 10


def test_of_ten_at_once_the_second_runs_again_when_the_first_fails(
    database_url: str, serve: Serve
) -> None:
    inbox, calls = with_failures(database_url, 1)
    service = serve(inbox)
    answers = send_at_once(service, [hookmesh_webhook()] * 10)
    failed = (500, {"error": "Processing failed", "message": "no such order"})
    assert Counter(map(str, answers)) == {str(failed): 1, str(PROCESSED): 1, str(ALREADY): 8}
    assert calls == ["evt_1"] * 2
    assert notes(database_url) == ["evt_1"]


@pytest.mark.every_transport
def test_a_failure_rolls_back_and_is_recorded_with_its_reason(
    database_url: str, serve: Serve
) -> None:
    inbox, _ = with_failures(database_url, 2)
    service = serve(inbox)
    for _ in range(2):
        assert service.send(hookmesh_webhook()).status_code == 500
    assert notes(database_url) == []
    (job,) = service.items("jobs")
    assert (job["status"], job["failure_type"], job["attempts"]) == ("failed", "inline", 2)
    assert job["last_error"] == "no such order"
    detail = service.http.get(f"/admin/jobs/{job['id']}").json()
    assert [attempt["number"] for attempt in detail["failed_attempts"]] == [2, 1]
    assert "test_inline.py" in detail["failed_attempts"][0]["traceback"]
    (event,) = service.items("events")
    assert (event["processing_state"], event["deliveries"]) == ("failed", 2)
    assert service.payload("evt_1")[0] == hookmesh_webhook().body
    assert answer(service.send(hookmesh_webhook())) == PROCESSED
    assert answer(service.send(hookmesh_webhook())) == ALREADY
    assert notes(database_url) == ["evt_1"]
    assert service.items("jobs")[0]["attempts"] == 3


def test_an_unknown_type_is_ignored(database_url: str, serve: Serve) -> None:
    service = serve(with_note(database_url))
    webhook = hookmesh_webhook(event_type="customer.created")
    assert answer(service.send(webhook)) == IGNORED
    assert answer(service.send(webhook)) == IGNORED
    (event,) = service.items("events")
    assert (event["processing_state"], event["deliveries"]) == ("ignored", 2)


def test_another_body_under_the_same_id_is_a_conflict(database_url: str, serve: Serve) -> None:
    service = serve(with_note(database_url))
    assert answer(service.send(hookmesh_webhook())) == PROCESSED
    response = service.send(hookmesh_webhook(amount=7))
    assert response.status_code == 202
    (event,) = service.items("events")
    assert response.json() == {
        "accepted": True,
        "duplicate": True,
        "conflict": True,
        "event_id": "evt_1",
        "id": event["id"],
        "source": "hookmesh",
    }
    assert event["conflicts"] == 1
    assert notes(database_url) == ["evt_1"]


@pytest.mark.parametrize("paused", ["sources/hookmesh", "handlers/note"])
def test_while_the_source_or_the_handler_is_paused_the_sender_retries(
    database_url: str, serve: Serve, paused: str
) -> None:
    service = serve(with_note(database_url))
    assert answer(service.send(hookmesh_webhook())) == PROCESSED
    note = service.http.post(f"/admin/{paused}/pause", json=ACT).json()["note"]
    assert "get 503, and nothing" in note
    assert note.endswith("is recorded until it is resumed.")
    response = service.send(hookmesh_webhook("evt_2"))
    assert (response.status_code, response.json()["error"]) == (503, "paused")
    assert int(response.headers["retry-after"]) > 0
    assert [event["event_id"] for event in service.items("events")] == ["evt_1"]
    assert answer(service.send(hookmesh_webhook())) == ALREADY
    assert service.http.post(f"/admin/{paused}/resume", json=ACT).status_code == 200
    assert service.send(hookmesh_webhook("evt_2")).json()["status"] == "processed"


def test_a_requeue_makes_a_failed_event_a_background_job(database_url: str, serve: Serve) -> None:
    inbox, calls = with_failures(database_url, 1)
    service = serve(inbox)
    assert service.send(hookmesh_webhook()).status_code == 500
    (job,) = service.items("jobs")
    assert service.http.post(f"/admin/jobs/{job['id']}/requeue", json=ACT).status_code == 200
    assert service.settled_job("evt_1")["status"] == "done"
    assert answer(service.send(hookmesh_webhook())) == ALREADY
    assert calls == ["evt_1"] * 2
    assert notes(database_url) == ["evt_1"]


def test_a_requeued_job_that_still_waits_is_left_to_the_worker(
    database_url: str, serve: Serve
) -> None:
    inbox, calls = with_failures(database_url, 1, workers=0)
    service = serve(inbox)
    assert service.send(hookmesh_webhook()).status_code == 500
    (job,) = service.items("jobs")
    assert service.http.post(f"/admin/jobs/{job['id']}/requeue", json=ACT).status_code == 200
    response = service.send(hookmesh_webhook())
    assert (response.status_code, response.json()["duplicate"]) == (202, True)
    assert calls == ["evt_1"]


def test_a_cancelled_event_is_ignored(database_url: str, serve: Serve) -> None:
    inbox, calls = with_failures(database_url, 1)
    service = serve(inbox)
    assert service.send(hookmesh_webhook()).status_code == 500
    (job,) = service.items("jobs")
    assert service.http.post(f"/admin/jobs/{job['id']}/cancel", json=ACT).status_code == 200
    assert answer(service.send(hookmesh_webhook())) == IGNORED
    assert calls == ["evt_1"]


def test_several_handlers_commit_together_or_not_at_all(database_url: str, serve: Serve) -> None:
    inbox = with_note(database_url)
    failures = ["no stock"]

    @inbox.on("order.paid", source="hookmesh")
    def ship(event: Event[Any], tx: Any, effects: Any) -> None:
        assert effects.once(f"ship:{event.id}")
        tx.execute(INSERT, {"text": "shipped"})
        if failures:
            raise PermanentError(failures.pop())

    service = serve(inbox)
    assert answer(service.send(hookmesh_webhook())) == (
        500,
        {"error": "Processing failed", "message": "no stock"},
    )
    assert notes(database_url) == []
    assert service.items("effects") == []
    errors = {job["handler"]: job["last_error"] for job in service.items("jobs")}
    assert errors == {"note": "Rolled back, because the handler ship failed", "ship": "no stock"}
    assert answer(service.send(hookmesh_webhook())) == PROCESSED
    assert notes(database_url) == ["evt_1", "shipped"]
    (effect,) = service.items("effects")
    jobs = {job["handler"]: job for job in service.items("jobs")}
    assert effect["job_id"] == jobs["ship"]["id"]
    assert {job["status"] for job in jobs.values()} == {"done"}


def test_an_effect_belongs_to_the_job_of_a_new_event(database_url: str, serve: Serve) -> None:
    inbox = inline_inbox(database_url)

    @inbox.on("order.paid", source="hookmesh")
    async def credit(event: Event[Any], effects: Effects) -> None:
        assert await effects.once("credit:order_7", reference="order_7")

    service = serve(inbox)
    assert answer(service.send(hookmesh_webhook())) == PROCESSED
    (job,), (effect,) = service.items("jobs"), service.items("effects")
    assert effect["job_id"] == job["id"]


def test_a_slow_handler_lets_other_deliveries_wait_until_the_limit(
    database_url: str, serve: Serve
) -> None:
    inbox = inline_inbox(database_url, inline_timeout_seconds=1.0)
    started, go_on = threading.Event(), threading.Event()

    @inbox.on("order.paid", source="hookmesh", timeout_seconds=30)
    def note(event: Event[Any], tx: Any) -> None:
        started.set()
        go_on.wait(10)
        tx.execute(INSERT, {"text": event.id})

    service = serve(inbox)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.send, hookmesh_webhook())
        assert started.wait(10)
        url = f"{service.address}/webhooks/hookmesh"
        second = hookmesh_webhook()
        busy = httpx.post(url, content=second.body, headers=second.headers, timeout=15)
        assert (busy.status_code, busy.json()["error"]) == (503, "busy")
        slow = first.result()
    go_on.set()
    assert slow.status_code == 500
    assert slow.json()["message"].startswith("note took longer than")
    assert notes(database_url) == []


def test_the_log_has_the_failure_with_its_job(
    database_url: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, _ = with_failures(database_url, 1)
    service = serve(inbox)
    service.send(hookmesh_webhook())
    (job,) = service.items("jobs")
    text = f"job {job['id']} of handler 'note' failed within the request, attempt 1: no such order"
    eventually(lambda: text in caplog.text, "the failure is logged")
