"""What operators see and do over HTTP: lists, filters, requeueing, and the trail it leaves."""

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

ACT = {"actor": "ann", "reason": "the order was created by hand"}
LISTS = ("events", "jobs", "effects", "deliveries", "audit")
HALF_A_PAIR = b'{"actor":"x","reason":"\\ud800"}'
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

FIELDS = {
    "events": "id source event_id event_type related_reference received_at processed_at "
    "processing_state deliveries conflicts duplicate_body_of",
    "jobs": "id status event_ledger_id source event_type external_event_id handler attempts "
    "max_attempts failure_type last_error available_at created_at finished_at",
    "effects": "id idempotency_key job_id reference status error_message created_at updated_at",
    "deliveries": "id event_ledger_id source event_id outcome received_at accepted_as",
    "rejections": "id source step check count received_at last_at kept received_as",
    "audit": "id job_id subject action actor authenticated_as reason created_at",
}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def desk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningInbox]:
    """A service on each store in which a few things have happened."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('desk') / 'onceward.db'}"
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        url = cluster.create_database(request.getfixturevalue("postgres_template"))
    running = RunningInbox(make_inbox(url), dev=True)
    happen(running)
    yield running
    running.close()


def happen(service: RunningInbox) -> None:
    service.post("paid", reference="order_7")
    service.post("paid", reference="order_7")
    service.post("paid", reference="order_8")
    service.signed(stripe_webhook("paid"))
    service.post("broken", "order.broken")
    service.post("unknown", "order.unknown")
    eventually(lambda: not unsettled(service), "every job is over")


def unsettled(service: RunningInbox) -> list[Item]:
    return service.items("jobs", status="queued") + service.items("jobs", status="in_progress")


def requeue(service: RunningInbox, job: str, act: Any = None, **options: Any) -> httpx.Response:
    given = options or {"json": ACT if act is None else act}
    return service.http.post(f"/admin/jobs/{job}/requeue", **given)


def failed_job(service: RunningInbox, event_id: str) -> Item:
    assert service.post(event_id, "order.broken").status_code == 202
    return service.settled_job(event_id)


# Lists.


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_has_one_shape(desk: RunningInbox, kind: str) -> None:
    if not desk.items("audit"):
        assert requeue(desk, failed_job(desk, "shape")["id"]).status_code == 200
    if kind == "rejections":
        desk.http.post("/webhooks/stripe", content=b"{}")
        eventually(lambda: desk.items("rejections"), "the rejection is listed")
    page = desk.http.get(f"/admin/{kind}").json()
    counts = {"counts"} if kind == "rejections" else set()
    assert set(page) == {"items", "limit", "next"} | counts
    assert (page["limit"], page["next"]) == (50, None)
    assert page["items"]
    for item in page["items"]:
        assert set(item) == set(FIELDS[kind].split())
        for name, value in item.items():
            if name == "id" or name in ("event_ledger_id", "job_id"):
                assert re.fullmatch(r"[1-9]\d*", value), name
            if name.endswith("_at") and value is not None:
                assert TIME.fullmatch(value), name
    ids = [int(item["id"]) for item in page["items"]]
    assert ids == sorted(ids, reverse=True)


def test_an_event_shows_what_became_of_it(desk: RunningInbox) -> None:
    (paid,) = [it for it in desk.items("events", event_id="paid") if it["source"] == "ingest"]
    assert paid["event_type"] == "order.paid"
    assert paid["related_reference"] == "order_7"
    assert paid["processing_state"] == "succeeded"
    assert (paid["deliveries"], paid["conflicts"]) == (3, 1)
    assert paid["processed_at"] >= paid["received_at"]
    (broken,) = desk.items("events", event_id="broken")
    assert broken["processing_state"] == "failed"
    (unknown,) = desk.items("events", event_id="unknown")
    assert (unknown["processing_state"], unknown["processed_at"]) == ("ignored", None)


def test_a_job_shows_why_it_failed(desk: RunningInbox) -> None:
    (job,) = desk.items("jobs", event_id="broken")
    (event,) = desk.items("events", event_id="broken")
    assert job["event_ledger_id"] == event["id"]
    assert job["external_event_id"] == "broken"
    assert (job["handler"], job["event_type"]) == ("refuse", "order.broken")
    assert (job["status"], job["failure_type"]) == ("failed", "permanent")
    assert (job["attempts"], job["max_attempts"]) == (1, 3)
    assert job["last_error"] == "no such order"


def test_an_effect_shows_its_key_and_what_it_is_about(desk: RunningInbox) -> None:
    (effect,) = desk.items("effects", reference="order_7")
    assert effect["idempotency_key"] == "credit:ingest:paid"
    assert (effect["status"], effect["error_message"]) == ("succeeded", None)


def test_every_delivery_is_shown_with_its_outcome(desk: RunningInbox) -> None:
    outcomes = {(it["source"], it["outcome"]) for it in desk.items("deliveries", event_id="paid")}
    assert outcomes == {
        ("ingest", "recorded"),
        ("ingest", "duplicate"),
        ("ingest", "conflict"),
        ("stripe", "recorded"),
    }


def test_pages_lead_from_one_to_the_next(desk: RunningInbox) -> None:
    for kind in ("events", "jobs", "deliveries"):
        whole = [item["id"] for item in desk.items(kind)]
        found: list[str] = []
        query = {"limit": "2"}
        while True:
            page = desk.http.get(f"/admin/{kind}", params=query).json()
            assert page["limit"] == 2
            found += [item["id"] for item in page["items"]]
            if page["next"] is None:
                break
            assert page["next"] == page["items"][-1]["id"]
            query["after"] = page["next"]
        assert found == whole


@pytest.mark.parametrize(
    ("kind", "filters", "expected"),
    [
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
    ],
)
def test_filters_narrow_a_list(
    desk: RunningInbox, kind: str, filters: dict[str, str], expected: set[str]
) -> None:
    found = desk.items(kind, **filters)
    assert {item.get("event_id") or item["external_event_id"] for item in found} == expected


@pytest.mark.parametrize(
    "value",
    ["' OR '1'='1", "paid'; DROP TABLE onceward_events; --", "%", "_", "paid%00x", "\\", "''"],
)
def test_sql_in_a_filter_is_a_value_and_nothing_else(desk: RunningInbox, value: str) -> None:
    before = desk.rows()
    for kind in LISTS:
        assert desk.items(kind, event_id=value) == []
    for kind in ("events", "effects"):
        assert desk.items(kind, reference=value) == []
    assert desk.rows() == before


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1.5",
        "limit=",
        "limit=many",
        "limit=%D9%A1",
        "limit=99999999999999999999999",
        "limit=1_0",
        "limit=1&limit=2",
        "after=x",
        "after=",
        "after=-1",
        "after=99999999999999999999999",
        "after=1%20OR%201=1",
        "event_id=a%00b",
        "event_id=",
        f"event_id={'x' * 256}",
        "status=nonsense",
        "status=",
        "sort=id",
        "order=id%20DESC",
        "source=stripe",
        "Limit=1",
        "=1",
    ],
)
def test_a_filter_that_is_none_is_refused(desk: RunningInbox, query: str) -> None:
    for kind in LISTS:
        response = desk.http.get(f"/admin/{kind}?{query}")
        assert response.status_code == 422
        assert response.json()["error"] == "bad_filter"


def test_the_largest_page_has_a_thousand(desk: RunningInbox) -> None:
    assert desk.http.get("/admin/events?limit=1000").json()["limit"] == 1000
    assert len(desk.http.get("/admin/events?limit=1").json()["items"]) == 1


def test_effects_and_the_audit_have_filters_of_their_own(desk: RunningInbox) -> None:
    assert desk.http.get("/admin/audit?status=done").status_code == 422
    assert desk.http.get("/admin/jobs?reference=x").status_code == 422
    assert desk.http.get("/admin/effects?status=unknown").status_code == 200
    assert "limit, after, event_id" in desk.http.get("/admin/audit?x=1").json()["message"]


# Requeueing.


def test_a_requeue_answers_with_what_it_did_and_leaves_an_entry(desk: RunningInbox) -> None:
    job = failed_job(desk, "requeued")
    response = requeue(desk, job["id"], {"actor": " ann ", "reason": " mended "})
    assert response.status_code == 200
    done = response.json()
    entry = done.pop("audit")
    assert TIME.fullmatch(done.pop("available_at"))
    assert done == {"ok": True, "id": job["id"], "status": "queued"}
    assert set(entry) == set(FIELDS["audit"].split())
    assert (entry["job_id"], entry["action"]) == (job["id"], "manual_requeue")
    assert (entry["actor"], entry["reason"]) == ("ann", "mended")
    assert entry["authenticated_as"] == "dev"
    assert desk.items("audit", event_id="requeued") == [entry]
    again = desk.settled_job("requeued")
    assert (again["attempts"], again["max_attempts"]) == (2, 4)


ACTS: dict[str, Any] = {
    "nothing": {},
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
    "not an object": ["x", "y"],
    "a text": "x",
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_without_an_actor_and_a_reason_nothing_is_requeued(desk: RunningInbox, act: Any) -> None:
    (job,) = desk.items("jobs", event_id="broken")
    entries = desk.items("audit")
    response = requeue(desk, job["id"], act)
    assert response.status_code == 422
    assert re.search("actor|reason", response.json()["message"])
    assert desk.items("jobs", event_id="broken") == [job]
    assert desk.items("audit") == entries


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense", b"\xff", b"[" * 100_000, b'{"actor":"x","reason":"y"}x', HALF_A_PAIR],
)
def test_what_is_not_json_requeues_nothing(desk: RunningInbox, content: bytes) -> None:
    (job,) = desk.items("jobs", event_id="broken")
    headers = {"content-type": "application/json"}
    response = requeue(desk, job["id"], content=content, headers=headers)
    assert response.status_code == 422
    assert desk.items("jobs", event_id="broken") == [job]


@pytest.mark.parametrize(
    "job",
    [
        "999999",
        "0",
        "-1",
        "1.0",
        "1e3",
        "x",
        "%20",
        "9" * 30,
        "%D9%A1",
        "1%00",
        "1%27%20OR%201=1",
        "..%2f..%2fevents",
        "<script>",
    ],
)
def test_a_job_that_is_not_there_is_404(desk: RunningInbox, job: str) -> None:
    entries = desk.items("audit")
    response = requeue(desk, job)
    assert response.status_code == 404
    assert response.json()["error"] == "not_found"
    assert response.headers["content-type"] == "application/json"
    assert desk.items("audit") == entries


def test_only_a_failed_or_cancelled_job_can_be_requeued(desk: RunningInbox) -> None:
    entries = desk.items("audit")
    job = next(job for job in desk.items("jobs", event_id="paid"))
    for status in ("done", "ignored", "queued"):
        set_status(desk, job["id"], status)
        response = requeue(desk, job["id"])
        assert response.status_code == 409
        assert response.json()["error"] == "not_in_state"
        assert status in response.json()["message"] or status == "queued"
    assert desk.items("audit") == entries


def set_status(service: RunningInbox, job: str, status: str) -> None:
    # A queued job would be taken by the worker: its time has not come.
    later = "9000000000000000" if service.raw_db.is_sqlite else "now() + interval '1 day'"
    service.raw_db.rows(
        f"UPDATE onceward.jobs SET status = '{status}', available_at = {later} WHERE id = {job}"  # noqa: S608 - our own
    )


def test_a_cancelled_job_can_be_requeued(desk: RunningInbox) -> None:
    job = failed_job(desk, "cancelled")
    set_status(desk, job["id"], "cancelled")
    assert requeue(desk, job["id"]).status_code == 200


def test_of_many_who_requeue_at_once_one_does_it(database_url: str, serve: Serve) -> None:
    service = serve(database_url, workers=0)
    service.post("evt_1", "order.broken")
    (job,) = service.items("jobs")
    set_status(service, job["id"], "failed")
    with ThreadPoolExecutor(8) as operators:
        answers = list(operators.map(lambda _: requeue(service, job["id"]).status_code, range(8)))
    assert sorted(answers) == [200] + [409] * 7
    assert len(service.items("audit")) == 1


def test_an_entry_can_be_neither_changed_nor_deleted(desk: RunningInbox) -> None:
    assert requeue(desk, failed_job(desk, "kept")["id"]).status_code == 200
    entries = desk.items("audit")
    for statement in (
        "DELETE FROM onceward.audit",
        "UPDATE onceward.audit SET actor = 'somebody else'",
    ):
        with pytest.raises(Exception, match="append only"):
            desk.raw_db.rows(statement)
    assert desk.items("audit") == entries


# Everything else.


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_lists_can_only_be_read(desk: RunningInbox, method: str) -> None:
    response = desk.http.request(method, "/admin/events")
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert response.json()["error"] == "wrong_method"


def test_a_requeue_is_a_post(desk: RunningInbox) -> None:
    response = desk.http.get("/admin/jobs/1/requeue")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/events/", "/admin/x", "/adminx"])
def test_what_is_not_there_is_404_and_leads_nowhere(desk: RunningInbox, path: str) -> None:
    response = desk.http.get(path)
    assert response.status_code == 404
    assert "location" not in response.headers
    assert set(response.json()) == {"error", "message"}


def test_answers_are_for_no_cache_and_for_no_browser_to_guess(desk: RunningInbox) -> None:
    headers = desk.http.get("/admin/events").headers
    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


def test_head_answers_like_get_without_the_body(desk: RunningInbox) -> None:
    for path in ("/admin/events", "/healthz", "/readyz"):
        response = desk.http.head(path)
        assert (response.status_code, response.content) == (200, b"")


def test_an_error_nobody_foresaw_is_answered_and_told_without_its_values(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a defect\nwith whsec_0123456789abcdef0123456789abcdef")

    running = RunningInbox(make_inbox(sqlite_url), dev=True)
    try:
        monkeypatch.setattr(running.service.store, "jobs", fail)
        answers = [running.http.get("/admin/jobs") for _ in range(50)]
    finally:
        running.close()
    assert {answer.status_code for answer in answers} == {500}
    assert answers[0].json() == {"error": "internal", "message": "An error; see the log."}
    told = [record for record in caplog.records if "defect" in record.getMessage()]
    assert 1 <= len(told) <= 3  # one a second
    assert "/admin/jobs: could not be answered: ZeroDivisionError" in told[0].getMessage()
    assert "whsec" not in caplog.text
