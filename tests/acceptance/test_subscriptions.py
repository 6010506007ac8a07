"""The example app, run by the real command and used over HTTP, keeps what the README promises."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from support.database import RawDatabase
from support.processes import SUBSCRIPTIONS, Serve

PAID = "subscription.paid"


@pytest.fixture
def service(database_url: str) -> Iterator[Serve]:
    with Serve(SUBSCRIPTIONS, database_url, forked=True) as running:
        yield running


@pytest.fixture
def malformed_job(service: Serve) -> dict[str, object]:
    """Return a job that failed because its payload lacks a required field."""
    service.accept("evt_1", PAID, {})
    service.wait_until_idle()
    return service.job("evt_1")


def test_a_payment_delivered_twice_activates_the_subscription_once(
    service: Serve, raw_db: RawDatabase
) -> None:
    receipts = [service.accept("evt_1", PAID, {"subscription_id": "sub_123"}) for _ in range(2)]
    assert [receipt["accepted"] for receipt in receipts] == [True, True]
    assert [receipt["duplicate"] for receipt in receipts] == [False, True]
    assert receipts[0]["id"] == receipts[1]["id"]
    service.wait_until_idle()

    (effect,) = service.items("effects")
    assert effect["idempotency_key"] == "activate_subscription:sub_123"
    assert effect["status"] == "succeeded"
    (event,) = service.items("events")
    assert (event["processing_state"], event["deliveries"]) == ("succeeded", 2)
    deliveries = service.items("deliveries")
    assert [delivery["outcome"] for delivery in deliveries] == ["duplicate", "recorded"]
    assert raw_db.rows("SELECT id, activations FROM subscriptions") == [("sub_123", 1)]


def test_a_malformed_payload_is_accepted_and_its_job_fails_permanently(
    service: Serve, malformed_job: dict[str, object]
) -> None:
    assert malformed_job["status"] == "failed"
    assert malformed_job["failure_type"] == "permanent"
    assert (malformed_job["attempts"], malformed_job["max_attempts"]) == (1, 3)
    assert malformed_job["last_error"] == "Malformed payload: missing subscription_id"
    assert service.items("effects") == []
    (event,) = service.items("events")
    assert event["processing_state"] == "failed"


def test_a_requeue_records_the_actor_and_the_reason(
    service: Serve, malformed_job: dict[str, object]
) -> None:
    job = str(malformed_job["id"])
    response = service.requeue(job, actor="ann@example.com", reason="the sender fixed it")
    assert response.status_code == 200
    assert (response.json()["ok"], response.json()["status"]) == (True, "queued")

    (entry,) = service.items("audit")
    assert entry == response.json()["audit"]
    assert (entry["job_id"], entry["action"]) == (job, "manual_requeue")
    assert (entry["actor"], entry["reason"]) == ("ann@example.com", "the sender fixed it")

    service.wait_until_idle()
    requeued = service.job("evt_1")
    assert (requeued["status"], requeued["attempts"], requeued["max_attempts"]) == ("failed", 2, 4)


def test_a_done_job_cannot_be_requeued(service: Serve) -> None:
    service.accept("evt_1", PAID, {"subscription_id": "sub_123"})
    service.wait_until_idle()
    response = service.requeue(service.job("evt_1")["id"], actor="ann", reason="retry")
    assert response.status_code == 409
    assert service.items("audit") == []


def test_two_hundred_concurrent_requests_record_one_event(
    service: Serve, raw_db: RawDatabase
) -> None:
    def post(_: int) -> httpx.Response:
        return service.post("evt_1", PAID, {"subscription_id": "sub_123"})

    with ThreadPoolExecutor(50) as pool:
        responses = list(pool.map(post, range(200)))
    service.wait_until_idle()

    assert Counter(response.status_code for response in responses) == {202: 200}
    assert Counter(response.json()["duplicate"] for response in responses) == {False: 1, True: 199}
    (event,) = service.items("events")
    assert (event["deliveries"], event["conflicts"]) == (200, 0)
    (job,) = service.items("jobs")
    assert (job["status"], job["attempts"]) == ("done", 1)
    assert len(service.items("effects")) == 1
    assert raw_db.rows("SELECT id, activations FROM subscriptions") == [("sub_123", 1)]


def test_an_event_without_a_handler_is_ignored(service: Serve) -> None:
    service.accept("evt_1", "subscription.mentioned", {"subscription_id": "sub_123"})
    (event,) = service.items("events")
    assert event["processing_state"] == "ignored"
    assert service.items("jobs") == []


def test_concurrent_events_apply_one_effect_once(service: Serve, raw_db: RawDatabase) -> None:
    def post(number: int) -> None:
        service.accept(f"evt_{number}", PAID, {"subscription_id": "sub_123"})

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(post, range(40)))
    service.wait_until_idle()

    assert Counter(job["status"] for job in service.items("jobs")) == {"done": 40}
    assert len(service.items("effects")) == 1
    assert raw_db.rows("SELECT id, activations FROM subscriptions") == [("sub_123", 1)]
