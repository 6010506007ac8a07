"""The admin API: lists, filters, requeueing and its audit entries."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.postgres import Cluster
from support.processes import Item, eventually
from tests.integration.conftest import Serve
from tests.integration.running import RunningInbox, make_inbox, stripe_webhook

ACTION = {"actor": "ann", "reason": "the order was created manually"}
LISTS = ("events", "jobs", "effects", "deliveries", "audit")
NAMES = ("handlers", "sources")
LONE_SURROGATE = b'{"actor":"x","reason":"\\ud800"}'
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

FIELDS = {
    "events": "id source event_id event_type related_reference received_at processed_at "
    "processing_state deliveries conflicts duplicate_body_of type_wanted",
    "jobs": "id status event_ledger_id source event_type external_event_id handler attempts "
    "max_attempts failure_type last_error available_at created_at finished_at ordering_key "
    "even_if_stale effect_id waiting waits_for",
    "effects": "id idempotency_key job_id reference status function call_no deadline_at "
    "error_message created_at updated_at",
    "deliveries": "id event_ledger_id source event_id outcome received_at accepted_as",
    "rejections": "id source cause check count received_at last_at kept received_as",
    "audit": "id job_id subject action actor authenticated_as reason created_at",
    "handlers": "id name paused_at ordering_key on_head_failed concurrency rate max_attempts "
    "routes forwards_to",
    "sources": "id name paused_at mode",
}

ATTEMPT = "number worker started_at ended_at error traceback"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningInbox]:
    """Run a service on each store, with events in several states."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('admin') / 'onceward.db'}"
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        url = cluster.create_database(request.getfixturevalue("postgres_template"))
    running = RunningInbox(make_inbox(url), dev=True)
    seed(running)
    yield running
    running.close()


def seed(service: RunningInbox) -> None:
    service.post("paid", reference="order_7")
    service.post("paid", reference="order_7")
    service.post("paid", reference="order_8")
    service.send(stripe_webhook("paid"))
    service.post("broken", "order.broken")
    service.post("unknown", "order.unknown")
    eventually(lambda: not unsettled(service), "every job is settled")


def unsettled(service: RunningInbox) -> list[Item]:
    return service.items("jobs", status="queued") + service.items("jobs", status="in_progress")


def requeue(service: RunningInbox, job: str, action: Any = None, **options: Any) -> httpx.Response:
    content = options or {"json": ACTION if action is None else action}
    return service.http.post(f"/admin/jobs/{job}/requeue", **content)


def failed_job(service: RunningInbox, event_id: str) -> Item:
    assert service.post(event_id, "order.broken").status_code == 202
    return service.settled_job(event_id)


# Lists.


def test_every_list_has_the_same_shape(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for kind, fields in FIELDS.items():
        with subtests.test(kind):
            if not service.items("audit"):
                assert requeue(service, failed_job(service, "shape")["id"]).status_code == 200
            if kind == "rejections":
                service.http.post("/webhooks/stripe", content=b"{}")
                eventually(lambda: service.items("rejections"), "the rejection is listed")
            page = service.http.get(f"/admin/{kind}").json()
            counts = {"counts"} if kind == "rejections" else set()
            assert set(page) == {"items", "limit", "next"} | counts
            assert (page["limit"], page["next"]) == (50, None)
            assert page["items"]
            for item in page["items"]:
                assert set(item) == set(fields.split())
                for name, value in item.items():
                    if name == "id" or name in ("event_ledger_id", "job_id"):
                        assert re.fullmatch(r"[1-9]\d*", value), name
                    if name.endswith("_at") and value is not None:
                        assert TIME.fullmatch(value), name
            ids = [int(item["id"]) for item in page["items"]]
            assert ids == sorted(ids, reverse=True)


def test_a_job_is_shown_with_its_failed_attempts(service: RunningInbox) -> None:
    job = failed_job(service, "detail")
    assert requeue(service, job["id"]).status_code == 200
    job = service.settled_job("detail")
    shown = service.http.get(f"/admin/jobs/{job['id']}").json()
    second, first = shown.pop("failed_attempts")
    assert shown == {**job, "waiting_behind": 0}
    assert (first["number"], second["number"]) == (1, 2)
    for attempt in (first, second):
        assert set(attempt) == set(ATTEMPT.split())
        assert attempt["error"] == "no such order"
        assert re.fullmatch(r"tests/integration/running.py:\d+ in refuse", attempt["traceback"])
        assert TIME.fullmatch(attempt["started_at"])
        assert attempt["started_at"] < attempt["ended_at"]


def test_a_job_without_failures_has_no_failed_attempts(service: RunningInbox) -> None:
    (job,) = service.items("jobs", event_id="paid", status="done")[:1]
    assert service.http.get(f"/admin/jobs/{job['id']}").json()["failed_attempts"] == []


def test_an_unknown_job_gets_404(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for job in ["999999999", "0", "x", "-1", "1" * 30]:
        with subtests.test(job):
            response = service.http.get(f"/admin/jobs/{job}")
            assert (response.status_code, response.json()["error"]) == (404, "not_found")


def test_an_event_shows_its_outcome(service: RunningInbox) -> None:
    events = service.items("events", event_id="paid")
    (paid,) = [event for event in events if event["source"] == "ingest"]
    assert paid["event_type"] == "order.paid"
    assert paid["related_reference"] == "order_7"
    assert paid["processing_state"] == "succeeded"
    assert (paid["deliveries"], paid["conflicts"]) == (3, 1)
    assert paid["processed_at"] >= paid["received_at"]
    (broken,) = service.items("events", event_id="broken")
    assert broken["processing_state"] == "failed"
    (unknown,) = service.items("events", event_id="unknown")
    assert (unknown["processing_state"], unknown["processed_at"]) == ("ignored", None)


def test_a_job_shows_why_it_failed(service: RunningInbox) -> None:
    (job,) = service.items("jobs", event_id="broken")
    (event,) = service.items("events", event_id="broken")
    assert job["event_ledger_id"] == event["id"]
    assert job["external_event_id"] == "broken"
    assert (job["handler"], job["event_type"]) == ("refuse", "order.broken")
    assert (job["status"], job["failure_type"]) == ("failed", "permanent")
    assert (job["attempts"], job["max_attempts"]) == (1, 40)
    assert job["last_error"] == "no such order"


def test_an_effect_shows_its_key_and_status(service: RunningInbox) -> None:
    (effect,) = service.items("effects", reference="order_7")
    assert effect["idempotency_key"] == "credit:ingest:paid"
    assert (effect["status"], effect["error_message"]) == ("succeeded", None)


def test_every_delivery_is_shown_with_its_outcome(service: RunningInbox) -> None:
    deliveries = service.items("deliveries", event_id="paid")
    outcomes = {(delivery["source"], delivery["outcome"]) for delivery in deliveries}
    assert outcomes == {
        ("ingest", "recorded"),
        ("ingest", "duplicate"),
        ("ingest", "conflict"),
        ("stripe", "recorded"),
    }


def test_pages_link_to_the_next_one(service: RunningInbox) -> None:
    for kind in ("events", "jobs", "deliveries"):
        expected = [item["id"] for item in service.items(kind)]
        ids: list[str] = []
        query = {"limit": "2"}
        while True:
            page = service.http.get(f"/admin/{kind}", params=query).json()
            assert page["limit"] == 2
            ids += [item["id"] for item in page["items"]]
            if page["next"] is None:
                break
            assert page["next"] == page["items"][-1]["id"]
            query["after"] = page["next"]
        assert ids == expected


FILTERED: list[tuple[str, dict[str, str], set[str]]] = [
    ("events", {"status": "succeeded"}, {"paid"}),
    ("events", {"status": "failed", "event_id": "broken"}, {"broken"}),
    ("events", {"status": "ignored"}, {"unknown"}),
    ("events", {"status": "pending"}, set()),
    ("events", {"status": "processing"}, set()),
    ("events", {"reference": "order_7"}, {"paid"}),
    ("events", {"reference": "order_7", "status": "failed"}, set()),
    ("jobs", {"status": "failed", "event_id": "broken"}, {"broken"}),
    ("jobs", {"status": "done"}, {"paid"}),
    ("jobs", {"status": "cancelled"}, set()),
    ("deliveries", {"status": "conflict"}, {"paid"}),
    ("deliveries", {"status": "conflict", "source": "github"}, set()),
    ("jobs", {"event_id": "broken", "handler": "refuse"}, {"broken"}),
    ("jobs", {"event_id": "paid", "handler": "refuse"}, set()),
]


def test_filters_narrow_a_list(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for kind, filters, expected in FILTERED:
        with subtests.test(kind, **filters):
            items = service.items(kind, **filters)
            assert {item.get("event_id") or item["external_event_id"] for item in items} == expected


SQL = ["' OR '1'='1", "paid'; DROP TABLE onceward_events; --", "%", "_", "paid%00x", "\\", "''"]


def test_sql_in_a_filter_is_only_a_value(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for value in SQL:
        with subtests.test(value):
            before = service.rows()
            for kind in LISTS:
                assert service.items(kind, event_id=value) == []
            for kind in ("events", "effects"):
                assert service.items(kind, reference=value) == []
            assert service.rows() == before


INVALID_FILTERS = [
    *("limit=0", "limit=1001", "limit=-1", "limit=1.5", "limit=", "limit=many", "limit=%D9%A1"),
    *("limit=99999999999999999999999", "limit=1_0", "limit=1&limit=2", "after=x", "after="),
    *("after=-1", "after=99999999999999999999999", "after=1%20OR%201=1", "event_id=a%00b"),
    *("event_id=", f"event_id={'x' * 256}", "status=nonsense", "status=", "sort=id"),
    *("order=id%20DESC", "type=invoice.paid", "Limit=1", "=1"),
]


def test_an_invalid_filter_gets_422(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for query in INVALID_FILTERS:
        with subtests.test(query):
            for kind in LISTS + NAMES:
                response = service.http.get(f"/admin/{kind}?{query}")
                assert response.status_code == 422
                assert response.json()["error"] == "bad_filter"


def test_a_page_has_at_most_a_thousand_items(service: RunningInbox) -> None:
    assert service.http.get("/admin/events?limit=1000").json()["limit"] == 1000
    assert len(service.http.get("/admin/events?limit=1").json()["items"]) == 1


def test_each_list_accepts_only_its_own_filters(service: RunningInbox) -> None:
    assert service.http.get("/admin/audit?status=done").status_code == 422
    assert service.http.get("/admin/jobs?reference=x").status_code == 422
    assert service.http.get("/admin/effects?status=unknown").status_code == 200
    assert "limit, after, event_id" in service.http.get("/admin/audit?x=1").json()["message"]


# Requeueing.


def test_a_requeue_returns_its_result_and_writes_an_audit_entry(service: RunningInbox) -> None:
    job = failed_job(service, "requeued")
    response = requeue(service, job["id"], {"actor": " ann ", "reason": " fixed "})
    assert response.status_code == 200
    result = response.json()
    entry = result.pop("audit")
    assert TIME.fullmatch(result.pop("available_at"))
    assert result == {"ok": True, "id": job["id"], "status": "queued", "note": None}
    assert set(entry) == set(FIELDS["audit"].split())
    assert (entry["job_id"], entry["action"]) == (job["id"], "manual_requeue")
    assert (entry["actor"], entry["reason"]) == ("ann", "fixed")
    assert entry["authenticated_as"] == "dev"
    assert service.items("audit", event_id="requeued") == [entry]
    again = service.settled_job("requeued")
    assert (again["attempts"], again["max_attempts"]) == (2, 41)


@pytest.mark.parametrize(
    ("word", "action"), [(True, "manual_requeue_even_if_stale"), (False, "manual_requeue")]
)
def test_a_requeue_even_if_stale_is_audited_as_such(
    service: RunningInbox, *, word: bool, action: str
) -> None:
    job = failed_job(service, f"stale {word}")
    set_status(service, job["id"], "ignored")
    body = {"actor": "ann", "reason": "fixed", "even_if_stale": word}
    response = requeue(service, job["id"], body)
    assert response.status_code == 200
    assert response.json()["audit"]["action"] == action
    service.settled_job(f"stale {word}")


INVALID_ACTIONS: dict[str, Any] = {
    "an empty object": {},
    "no actor": {"reason": "x"},
    "no reason": {"actor": "x"},
    "an empty actor": {"actor": "", "reason": "x"},
    "an empty reason": {"actor": "x", "reason": ""},
    "a blank actor": {"actor": " \t\n", "reason": "x"},
    "a blank reason": {"actor": "x", "reason": "\u3000\u00a0"},
    "a number": {"actor": 7, "reason": "x"},
    "a list": {"actor": "x", "reason": ["x"]},
    "null": {"actor": None, "reason": "x"},
    "a NUL": {"actor": "a\0b", "reason": "x"},
    "too long": {"actor": "x" * 256, "reason": "x"},
    "a text for a boolean": {"actor": "x", "reason": "x", "even_if_stale": "yes"},
    "not an object": ["x", "y"],
    "a string": "x",
}


def test_a_requeue_needs_an_actor_and_a_reason(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for name, action in INVALID_ACTIONS.items():
        with subtests.test(name):
            (job,) = service.items("jobs", event_id="broken")
            entries = service.items("audit")
            response = requeue(service, job["id"], action)
            assert response.status_code == 422
            assert re.search("actor|reason", response.json()["message"])
            assert service.items("jobs", event_id="broken") == [job]
            assert service.items("audit") == entries


INVALID_JSON = [
    b"",
    b"{",
    b"nonsense",
    b"\xff",
    b"[" * 100_000,
    b'{"actor":"x","reason":"y"}x',
    LONE_SURROGATE,
]


def test_invalid_json_requeues_nothing(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for content in INVALID_JSON:
        with subtests.test(repr(content[:40])):
            (job,) = service.items("jobs", event_id="broken")
            headers = {"content-type": "application/json"}
            response = requeue(service, job["id"], content=content, headers=headers)
            assert response.status_code == 422
            assert service.items("jobs", event_id="broken") == [job]


MISSING_JOBS = [
    *("999999", "0", "-1", "1.0", "1e3", "x", "%20", "9" * 30, "%D9%A1", "1%00"),
    *("1%27%20OR%201=1", "..%2f..%2fevents", "<script>"),
]


def test_a_missing_job_gets_404(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for job in MISSING_JOBS:
        with subtests.test(job):
            entries = service.items("audit")
            response = requeue(service, job)
            assert response.status_code == 404
            assert response.json()["error"] == "not_found"
            assert response.headers["content-type"] == "application/json"
            assert service.items("audit") == entries


def test_a_job_that_is_done_or_queued_cannot_be_requeued(service: RunningInbox) -> None:
    entries = service.items("audit")
    job = next(job for job in service.items("jobs", event_id="paid"))
    for status in ("done", "queued"):
        set_status(service, job["id"], status)
        response = requeue(service, job["id"])
        assert response.status_code == 409
        assert response.json()["error"] == "not_in_state"
        assert f" is {status};" in response.json()["message"]
    assert service.items("audit") == entries


def set_status(service: RunningInbox, job: str, status: str) -> None:
    # A queued job that is due would be claimed by the worker.
    later = "9000000000000000" if service.raw_db.is_sqlite else "now() + interval '1 day'"
    service.raw_db.rows(
        f"UPDATE onceward.jobs SET status = '{status}', available_at = {later} WHERE id = {job}"  # noqa: S608 - the test's own values
    )


def test_a_cancelled_job_can_be_requeued(service: RunningInbox) -> None:
    job = failed_job(service, "cancelled")
    set_status(service, job["id"], "cancelled")
    assert requeue(service, job["id"]).status_code == 200


def test_exactly_one_of_many_concurrent_requeues_succeeds(database_url: str, serve: Serve) -> None:
    service = serve(database_url, workers=0)
    service.post("evt_1", "order.broken")
    (job,) = service.items("jobs")
    set_status(service, job["id"], "failed")
    with ThreadPoolExecutor(8) as operators:
        responses = list(operators.map(lambda _: requeue(service, job["id"]).status_code, range(8)))
    assert sorted(responses) == [200] + [409] * 7
    assert len(service.items("audit")) == 1


def test_an_audit_entry_cannot_be_changed_or_deleted(service: RunningInbox) -> None:
    assert requeue(service, failed_job(service, "kept")["id"]).status_code == 200
    entries = service.items("audit")
    for statement in (
        "DELETE FROM onceward.audit",
        "UPDATE onceward.audit SET actor = 'mallory'",
    ):
        with pytest.raises(Exception, match="append only"):
            service.raw_db.rows(statement)
    assert service.items("audit") == entries


# Methods, paths, headers and unexpected errors.


def test_lists_are_read_only(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        with subtests.test(method):
            response = service.http.request(method, "/admin/events")
            assert response.status_code == 405
            assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}
            assert response.json()["error"] == "wrong_method"


def test_a_requeue_needs_post(service: RunningInbox) -> None:
    response = service.http.get("/admin/jobs/1/requeue")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_an_unknown_path_gets_404_without_a_redirect(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for path in ["/admin/events/", "/admin/x", "/adminx", "/admin/x/"]:
        with subtests.test(path):
            response = service.http.get(path)
            assert response.status_code == 404
            assert "location" not in response.headers
            assert set(response.json()) == {"error", "message"}


def test_responses_forbid_caching_and_content_sniffing(service: RunningInbox) -> None:
    headers = service.http.get("/admin/events").headers
    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


def test_head_works_like_get_without_the_body(service: RunningInbox) -> None:
    for path in ("/admin/events", "/healthz", "/readyz"):
        response = service.http.head(path)
        assert (response.status_code, response.content) == (200, b"")


def test_an_unexpected_error_gets_500_and_a_redacted_log_line(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a defect\nwith whsec_0123456789abcdef0123456789abcdef")

    running = RunningInbox(make_inbox(sqlite_url), dev=True)
    try:
        monkeypatch.setattr(running.service.store, "jobs", fail)
        responses = [running.http.get("/admin/jobs") for _ in range(50)]
    finally:
        running.close()
    assert {response.status_code for response in responses} == {500}
    assert responses[0].json() == {
        "error": "internal",
        "message": "Internal error. The log has the details.",
    }
    lines = [record for record in caplog.records if "defect" in record.getMessage()]
    assert 1 <= len(lines) <= 3  # one a second
    assert "/admin/jobs: 500: request failed: ZeroDivisionError" in lines[0].getMessage()
    assert "whsec" not in caplog.text
