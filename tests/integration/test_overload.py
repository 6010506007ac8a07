"""A slow, blocked or missing ledger: a timely 503, bounded memory, and recovery."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from onceward.http import admin_app
from support.database import RawDatabase
from support.postgres import Cluster
from support.processes import eventually
from tests.integration.conftest import Serve
from tests.integration.running import RunningInbox, partner_webhook, request

COMMIT_TIMEOUT_SECONDS = 0.4


@contextmanager
def locked(raw_db: RawDatabase, table: str = "events") -> Iterator[None]:
    """Hold a lock that every write must wait for."""
    with raw_db.connection() as connection:
        if raw_db.is_sqlite:
            connection.execute("BEGIN IMMEDIATE")
        else:
            connection.execute(f"LOCK TABLE onceward.{table} IN ACCESS EXCLUSIVE MODE")
        yield


def assert_retry_later(response: httpx.Response, *errors: str) -> None:
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert response.json()["error"] in errors


@pytest.mark.every_transport
def test_a_blocked_ledger_gets_a_timely_503_and_recovers(database_url: str, serve: Serve) -> None:
    service = serve(database_url, commit_timeout_seconds=COMMIT_TIMEOUT_SECONDS, workers=0)
    with locked(service.raw_db):
        started = time.monotonic()
        response = service.post("evt_1")
        assert COMMIT_TIMEOUT_SECONDS / 2 < time.monotonic() - started < COMMIT_TIMEOUT_SECONDS + 2
        assert_retry_later(response, "slow", "unavailable")
        started = time.monotonic()
        assert service.http.get("/healthz").json() == {"healthy": True}
        assert time.monotonic() - started < 2  # not for the lock
    eventually(lambda: service.post("evt_1").status_code == 202, "it accepts events again")
    assert service.post("evt_1").json()["duplicate"] is True
    assert service.rows()[0] == 1


@pytest.mark.every_transport
def test_requests_beyond_the_pending_limit_are_rejected_at_once(
    database_url: str, serve: Serve
) -> None:
    service = serve(
        database_url,
        commit_timeout_seconds=2.0,
        max_pending_events=5,
        max_batch_events=1,
        workers=0,
    )
    with locked(service.raw_db), ThreadPoolExecutor(20) as senders:
        responses = list(senders.map(lambda number: service.post(f"evt_{number}"), range(20)))
    for response in responses:
        assert_retry_later(response, "overloaded", "slow", "unavailable")
    refused = [response for response in responses if response.json()["error"] == "overloaded"]
    assert len(refused) == 15
    assert max(response.elapsed.total_seconds() for response in refused) < 1.8
    for number in range(20):
        eventually(lambda: service.post(f"evt_{number}").is_success, "it accepts events again")  # noqa: B023 - called in this iteration
    assert service.rows()[0] == 20


@pytest.mark.every_transport
def test_requests_beyond_the_pending_bytes_are_rejected(sqlite_url: str, serve: Serve) -> None:
    service = serve(
        sqlite_url, commit_timeout_seconds=2.0, max_pending_bytes=20_000, max_body_bytes=15_000
    )
    large = {"text": "x" * 9_000}

    def post(number: int) -> httpx.Response:
        return service.post(f"evt_{number}", payload=large)

    with locked(service.raw_db), ThreadPoolExecutor(6) as senders:
        responses = list(senders.map(post, range(6)))
    errors = sorted(response.json()["error"] for response in responses)
    assert errors.count("overloaded") == 4
    eventually(lambda: service.post("after", payload=large).is_success, "it accepts events again")
    for number in range(10):
        assert post(number).status_code == 202


@pytest.mark.every_transport
def test_incomplete_bodies_of_one_address_keep_no_other_address_out(
    database_url: str, serve: Serve
) -> None:
    size = 100_000
    service = serve(
        database_url,
        trusted_proxies=("127.0.0.1",),
        max_body_bytes=size,
        max_pending_bytes=4 * size,
    )

    def webhook(address: str, number: int = 0) -> bytes:
        sent = partner_webhook(f"{address}-{number}", b" " * size)
        return request(
            "/webhooks/partner", sent.body, headers=sent.headers | {"x-forwarded-for": address}
        )

    with ExitStack() as stack:
        hoarders = [stack.enter_context(service.connect()) for _ in range(10)]
        for connection in hoarders:
            connection.send(webhook("203.0.113.9")[:-1])
        for number in range(10):
            with service.connect() as connection:
                response = connection.send(webhook("198.51.100.7", number)).read_response()
                assert response.status == 202, response.body


def test_a_ledger_that_cannot_be_written_is_not_ready(postgres_url: str, serve: Serve) -> None:
    service = serve(postgres_url, commit_timeout_seconds=COMMIT_TIMEOUT_SECONDS, workers=0)
    with locked(service.raw_db):
        assert_retry_later(service.post("evt_1"), "slow")
        response = service.http.get("/readyz")
        assert (response.status_code, response.json()["ready"]) == (503, False)
        assert service.http.get("/healthz").status_code == 200
    eventually(lambda: service.http.get("/readyz").status_code == 200, "it is ready again")


def test_the_service_recovers_when_the_database_restarts(
    postgres_cluster: Cluster, postgres_url: str, serve: Serve
) -> None:
    service = serve(postgres_url, commit_timeout_seconds=2.0, workers=0)
    assert service.post("evt_1").status_code == 202
    postgres_cluster.crash()
    assert_retry_later(service.post("evt_2"), "unavailable", "slow")
    assert service.http.get("/readyz").status_code == 503
    assert service.http.get("/healthz").status_code == 200
    assert_retry_later(service.http.get("/admin/events"), "unavailable")
    postgres_cluster.start()
    eventually(lambda: service.post("evt_2").is_success, "it accepts events again")
    eventually(lambda: service.http.get("/readyz").is_success, "it is ready again")
    assert {event["event_id"] for event in service.items("events")} == {"evt_1", "evt_2"}


def test_an_operator_action_times_out(
    database_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_app, "RESPONSE_TIMEOUT_SECONDS", 0.3)
    service = serve(database_url)
    assert service.post("evt_1", "order.broken").status_code == 202
    job = service.settled_job("evt_1")["id"]
    with locked(service.raw_db, "jobs"):
        started = time.monotonic()
        response = requeue(service, job)
        assert time.monotonic() - started < 3
        assert_retry_later(response, "unavailable")
    assert service.items("audit") == []
    eventually(lambda: requeue(service, job).is_success, "the job is queued again")
    assert len(service.items("audit")) == 1


def requeue(service: RunningInbox, job: str) -> httpx.Response:
    action = {"actor": "ann", "reason": "fixed"}
    return service.http.post(f"/admin/jobs/{job}/requeue", json=action)
