"""The admin API of the queue: pause, resume, cancel, and the lists of handlers and sources."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from onceward import Event, Inbox, Transaction
from support.postgres import Cluster
from support.processes import Item, eventually
from tests.integration.conftest import Serve
from tests.integration.running import RunningInbox, make_inbox

ACTION = {"actor": " ann ", "reason": " the bank is down "}
ODD_NAME = "shop/orders: Ä <credit> 1"
"""Slashes and everything else that a path may contain."""
AUDIT = "id job_id subject action actor authenticated_as reason created_at"
PATHS = [
    f"/admin/{path}"
    for path in (
        *("handlers/credit/pause", "handlers/credit/resume"),
        *("sources/stripe/pause", "sources/stripe/resume", "jobs/1/cancel"),
    )
]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningInbox]:
    """Run a service without a worker, on each store."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('queue') / 'onceward.db'}"
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        url = cluster.create_database(request.getfixturevalue("postgres_template"))
    inbox = make_inbox(url, workers=0)

    @inbox.on("order.odd", name=ODD_NAME)
    async def odd() -> None:
        """Do nothing."""

    running = RunningInbox(inbox, dev=True)
    yield running
    running.close()


def act(service: RunningInbox, path: str, action: Any = None) -> httpx.Response:
    return service.http.post(f"/admin/{path}", json=ACTION if action is None else action)


def named(service: RunningInbox, kind: str, name: str) -> Item:
    (item,) = [item for item in service.items(kind) if item["name"] == name]
    return item


def queued_job(service: RunningInbox, event_id: str) -> str:
    assert service.post(event_id).status_code == 202
    (job,) = service.items("jobs", event_id=event_id)
    job_id: str = job["id"]
    return job_id


def test_a_requeue_without_a_payload_gets_409_with_the_reason(service: RunningInbox) -> None:
    job = queued_job(service, "evt_without_payload")
    assert act(service, f"jobs/{job}/cancel").status_code == 200
    service.raw_db.rows(
        "DELETE FROM onceward.payloads WHERE event IN "
        "(SELECT id FROM onceward.events WHERE event_id = 'evt_without_payload')"
    )
    refused = act(service, f"jobs/{job}/requeue")
    assert (refused.status_code, refused.json()["error"]) == (409, "not_in_state")
    assert "evt_without_payload was dropped from the ledger" in refused.json()["message"]


# Pause and resume.


PAUSED = [
    ("handlers", "credit"),
    ("handlers", ODD_NAME),
    ("sources", "stripe"),
    ("sources", "ingest"),
]


def test_a_pause_and_a_resume_return_their_result_and_are_audited(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for kind, name in PAUSED:
        with subtests.test(f"{kind} {name}"):
            paused = act(service, f"{kind}/{name}/pause")
            assert paused.status_code == 200, paused.text
            result = paused.json()
            assert set(result) == {"ok", "name", "paused_at", "note", "audit"}
            assert (result["ok"], result["name"]) == (True, name)
            assert result["paused_at"] == named(service, kind, name)["paused_at"] is not None
            resumed = act(service, f"{kind}/{name}/resume").json()
            assert (resumed["name"], resumed["paused_at"]) == (name, None)
            assert named(service, kind, name)["paused_at"] is None
            assert service.items("audit", limit="2") == [resumed["audit"], result["audit"]]
            for action, entry in (("pause", result["audit"]), ("resume", resumed["audit"])):
                assert set(entry) == set(AUDIT.split())
                singular = kind.removesuffix("s")
                assert entry["action"] == f"{action}_{singular}"
                assert (entry["subject"], entry["job_id"]) == (f"{singular}:{name}", None)
                assert (entry["actor"], entry["reason"]) == ("ann", "the bank is down")
                assert entry["authenticated_as"] == "dev"


@pytest.mark.parametrize("path", ["handlers/refuse", "sources/github"])
def test_a_second_pause_and_a_second_resume_get_409(service: RunningInbox, path: str) -> None:
    first = act(service, f"{path}/resume")
    assert (first.status_code, first.json()["error"]) == (409, "not_in_state")
    assert "is not paused" in first.json()["message"]
    assert act(service, f"{path}/pause").status_code == 200
    again = act(service, f"{path}/pause")
    assert (again.status_code, again.json()["error"]) == (409, "not_in_state")
    assert "is already paused" in again.json()["message"]
    assert act(service, f"{path}/resume").status_code == 200


UNKNOWN = [
    *(
        "handlers/nobody",
        "handlers/CREDIT",
        "handlers/credit/",
        "handlers/a/b/c",
        "handlers/%20",
    ),
    *("sources/nobody", "sources/STRIPE", "sources/credit", "sources/a/b"),
    *("handlers/stripe", f"handlers/{'x' * 300}", "handlers/%C3%28", "handlers/1"),
    *("handlers/a%2Fb", "handlers/..%2fcredit", "handlers/%63redit", "handlers/x%00"),
    *("jobs/1", "workers/credit"),
]


def test_an_unknown_name_gets_404(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for path, verb in itertools.product(UNKNOWN, ["pause", "resume"]):
        with subtests.test(f"{verb} {path}"):
            entries = service.items("audit")
            response = act(service, f"{path}/{verb}")
            assert (response.status_code, response.json()["error"]) == (404, "not_found")
            assert service.items("audit") == entries


def test_a_paused_source_still_records(service: RunningInbox) -> None:
    assert act(service, "sources/ingest/pause").status_code == 200
    job = queued_job(service, "while-paused")
    assert service.items("jobs", event_id="while-paused")[0]["waiting"] == "paused_source"
    assert act(service, "sources/ingest/resume").status_code == 200
    assert service.http.get(f"/admin/jobs/{job}").json()["waiting"] is None


def test_one_of_many_concurrent_pauses_succeeds(service: RunningInbox) -> None:
    with ThreadPoolExecutor(6) as operators:
        calls = operators.map(lambda _: act(service, "handlers/credit/pause").status_code, range(6))
        assert sorted(calls) == [200] + [409] * 5
    assert act(service, "handlers/credit/resume").status_code == 200


# Cancel.


def test_a_cancellation_returns_its_result_and_is_audited(service: RunningInbox) -> None:
    job = queued_job(service, "cancelled")
    result = act(service, f"jobs/{job}/cancel").json()
    entry = result.pop("audit")
    shown = service.http.get(f"/admin/jobs/{job}").json()
    assert result == {
        "ok": True,
        "id": job,
        "status": "cancelled",
        "finished_at": shown["finished_at"],
    }
    assert shown["status"] == "cancelled"
    assert (entry["action"], entry["subject"], entry["job_id"]) == ("cancel", f"job:{job}", job)
    assert service.items("audit", event_id="cancelled") == [entry]
    (event,) = service.items("events", event_id="cancelled")
    assert event["processing_state"] == "ignored"
    again = act(service, f"jobs/{job}/cancel")
    assert (again.status_code, again.json()["error"]) == (409, "not_in_state")
    assert f"Job {job} is cancelled" in again.json()["message"]
    assert act(service, f"jobs/{job}/requeue").status_code == 200


def test_a_job_that_is_done_cannot_be_cancelled(service: RunningInbox) -> None:
    job = queued_job(service, "finished")
    service.raw_db.rows(f"UPDATE onceward.jobs SET status = 'done' WHERE id = {job}")  # noqa: S608 - the test's own values
    response = act(service, f"jobs/{job}/cancel")
    assert response.status_code == 409
    assert f"Job {job} is done" in response.json()["message"]


def test_an_unknown_job_gets_404(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for job in ["999999999", "0", "x", "-1", "1" * 30, "%20", "1.0"]:
        with subtests.test(job):
            response = act(service, f"jobs/{job}/cancel")
            assert (response.status_code, response.json()["error"]) == (404, "not_found")


def test_exactly_one_of_many_concurrent_cancellations_succeeds(service: RunningInbox) -> None:
    job = queued_job(service, "raced")
    with ThreadPoolExecutor(6) as operators:
        calls = operators.map(lambda _: act(service, f"jobs/{job}/cancel").status_code, range(6))
        assert sorted(calls) == [200] + [409] * 5
    assert len(service.items("audit", event_id="raced")) == 1


# A running handler.


class Gate:
    """A handler that writes when the test lets it."""

    def __init__(self, url: str) -> None:
        self.started, self.released = threading.Event(), threading.Event()
        self.inbox = Inbox(url, lease_seconds=30.0)

        @self.inbox.at_start
        async def create(tx: Transaction) -> None:
            await tx.execute("CREATE TABLE IF NOT EXISTS notes (text text)")

        @self.inbox.on("order.paid")
        async def note(event: Event[Any], tx: Transaction) -> None:
            self.started.set()
            await asyncio.to_thread(self.released.wait, 10)
            await tx.execute("INSERT INTO notes VALUES (:text)", {"text": event.id})


@pytest.fixture
def gate(database_url: str) -> Iterator[Gate]:
    """Return a handler that waits, and let it go at the end."""
    made = Gate(database_url)
    yield made
    made.released.set()


@pytest.fixture
def running(gate: Gate) -> Iterator[RunningInbox]:
    """Run a service whose handler waits."""
    inbox = RunningInbox(gate.inbox, dev=True)
    yield inbox
    gate.released.set()
    inbox.close()


def test_a_handler_that_runs_when_its_job_is_cancelled_commits_nothing(
    gate: Gate, running: RunningInbox
) -> None:
    job = queued_job(running, "evt_1")
    assert gate.started.wait(5)
    assert running.items("jobs")[0]["status"] == "in_progress"
    assert act(running, f"jobs/{job}/cancel").status_code == 200
    gate.released.set()
    assert running.post("evt_2").status_code == 202
    eventually(lambda: running.items("jobs", status="done"), "the next event is handled")
    eventually(lambda: running.raw_db.rows("SELECT text FROM notes"), "its note is written")
    assert running.raw_db.rows("SELECT text FROM notes") == [("evt_2",)]
    (cancelled,) = running.items("jobs", event_id="evt_1")
    assert (cancelled["status"], cancelled["attempts"]) == ("cancelled", 0)


def test_a_handler_and_a_cancellation_that_race_have_one_winner(
    gate: Gate, running: RunningInbox
) -> None:
    gate.released.set()
    cancelled = set()
    for number in range(20):
        job = queued_job(running, f"evt_{number}")
        if act(running, f"jobs/{job}/cancel").status_code == 200:
            cancelled.add(f"evt_{number}")
    eventually(lambda: not unsettled(running), "every job is settled")
    statuses = {item["external_event_id"]: item["status"] for item in running.items("jobs")}
    assert {event for event, status in statuses.items() if status == "cancelled"} == cancelled
    notes = {text for (text,) in running.raw_db.rows("SELECT text FROM notes")}
    assert notes == {event for event, status in statuses.items() if status == "done"}
    assert notes | cancelled == set(statuses)


def unsettled(service: RunningInbox) -> list[Item]:
    return service.items("jobs", status="queued") + service.items("jobs", status="in_progress")


# The lists.


def test_the_lists_of_names_have_the_shape_of_all_lists(service: RunningInbox) -> None:
    fields = {
        "handlers": (
            "id name paused_at ordering_key on_head_failed concurrency rate max_attempts routes "
            "forwards_to"
        ),
        "sources": "id name paused_at mode",
    }
    for kind, names in fields.items():
        page = service.http.get(f"/admin/{kind}?limit=2").json()
        assert (page["limit"], page["next"]) == (2, page["items"][-1]["id"])
        assert [set(item) for item in page["items"]] == [set(names.split())] * 2
        rest = service.http.get(f"/admin/{kind}?after={page['next']}").json()["items"]
        assert page["items"] + rest == service.items(kind)
        assert service.http.get(f"/admin/{kind}?source=stripe").status_code == 422


def test_jobs_can_be_filtered_by_their_key(service: RunningInbox) -> None:
    first, second = queued_job(service, "key-1"), queued_job(service, "key-2")
    service.raw_db.rows(
        f"UPDATE onceward.jobs SET ordering_key = 'cus/1', parked = (id = {second}) "  # noqa: S608 - the test's own values
        f"WHERE id IN ({first}, {second})"
    )
    waiting, head = service.items("jobs", ordering_key="cus/1")
    assert (head["id"], head["waiting"], head["waits_for"]) == (first, None, None)
    assert (waiting["id"], waiting["waiting"], waiting["waits_for"]) == (second, "key", first)
    assert waiting["ordering_key"] == "cus/1"
    assert service.http.get(f"/admin/jobs/{first}").json()["waiting_behind"] == 1
    for query in ("ordering_key=", "ordering_key=a%00b", f"ordering_key={'x' * 256}"):
        assert service.http.get(f"/admin/jobs?{query}").status_code == 422
    assert service.http.get("/admin/events?ordering_key=x").status_code == 422


# What every action needs.


INVALID: dict[str, Callable[[RunningInbox, str], httpx.Response]] = {
    "no actor": lambda service, path: service.http.post(path, json={"reason": "x"}),
    "a blank reason": lambda service, path: service.http.post(
        path, json={"actor": "x", "reason": " "}
    ),
    "a NUL": lambda service, path: service.http.post(path, json={"actor": "a\0b", "reason": "x"}),
    "a list": lambda service, path: service.http.post(path, json=["x", "y"]),
    "no JSON": lambda service, path: service.http.post(
        path, content=b"{", headers={"content-type": "application/json"}
    ),
    "no body": lambda service, path: service.http.post(
        path, headers={"content-type": "application/json"}
    ),
}


def test_an_action_needs_an_actor_and_a_reason(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for fault, path in itertools.product(INVALID, PATHS):
        with subtests.test(f"{fault}: {path}"):
            entries = service.items("audit")
            response = INVALID[fault](service, path)
            assert (response.status_code, response.json()["error"]) == (422, "bad_act")
            assert service.items("audit") == entries


def test_an_action_needs_post_and_json(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for path in PATHS:
        with subtests.test(path):
            wrong = service.http.get(path)
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
            assert service.http.post(path, data=ACTION).status_code == 415


def test_an_action_needs_a_token(
    sqlite_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", "ann:token-of-ann-0123456789")
    closed = serve(sqlite_url, dev=False, workers=0)
    for path in (*PATHS, "/admin/handlers", "/admin/sources"):
        method = "POST" if path in PATHS else "GET"
        assert closed.http.request(method, path, json=ACTION).status_code == 401
    assert closed.raw_db.count("onceward.audit") == 0
    headers = {"authorization": "Bearer token-of-ann-0123456789"}
    response = closed.http.post(PATHS[0], json=ACTION, headers=headers)
    assert response.json()["audit"]["authenticated_as"] == "ann"
