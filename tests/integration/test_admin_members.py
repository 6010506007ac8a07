"""Actions of operators refuse what they do not know; the list of sources has their modes."""

from typing import Any

import pytest

from onceward import Inbox
from tests.integration.conftest import Serve
from tests.integration.running import RunningInbox

ACTION = {"actor": "ann", "reason": "a mistake"}
PATHS = [
    "/admin/jobs/1/requeue",
    "/admin/jobs/1/cancel",
    "/admin/events/1/route",
    "/admin/events/1/dismiss",
    "/admin/effects/1/resolve",
    "/admin/rejections/1/verify",
    "/admin/deliveries/1/accept",
    "/admin/handlers/credit/pause",
    "/admin/handlers/credit/resume",
    "/admin/sources/stripe/pause",
    "/admin/sources/stripe/resume",
]


def test_an_unknown_member_is_refused(service: RunningInbox) -> None:
    for path in PATHS:
        response = service.http.post(path, json={**ACTION, "force": True})
        assert (response.status_code, response.json()["error"]) == (422, "bad_act"), path
        message = response.json()["message"]
        assert message.startswith("unknown member 'force'; the members are actor, ")
    assert service.items("audit") == []


def test_a_query_is_refused(service: RunningInbox) -> None:
    message = "unknown query parameter 'even_if_stale'; send it in the JSON body"
    for path in PATHS:
        response = service.http.post(f"{path}?even_if_stale=true", json=ACTION)
        assert response.status_code == 422, path
        assert response.json() == {"error": "bad_act", "message": message}
    assert service.items("audit") == []


MISSPELLED = [
    ("even-if-stale", "unknown member 'even-if-stale'; did you mean 'even_if_stale'?"),
    ("evenIfStale", "unknown member 'evenIfStale'; did you mean 'even_if_stale'?"),
    ("x" * 1000, f"unknown member '{'x' * 40}'; the members are actor, even_if_stale, reason"),
]


def test_a_misspelled_member_is_refused_with_the_right_one(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for member, message in MISSPELLED:
        with subtests.test(member[:20]):
            response = service.http.post("/admin/jobs/1/requeue", json={**ACTION, member: True})
            assert (response.status_code, response.json()["message"]) == (422, message)


def test_a_source_shows_where_its_handlers_run(database_url: str, serve: Serve) -> None:
    inbox = Inbox(database_url)
    secrets: Any = ["a-long-secret-for-tests"]
    inbox.source("hookmesh", scheme="body", secrets=secrets, mode="inline")
    inbox.source("github", secrets=secrets)
    service = serve(inbox)
    modes = {item["name"]: item["mode"] for item in service.items("sources")}
    assert modes == {"hookmesh": "inline", "github": "background", "ingest": "background"}
    other = serve(Inbox(database_url)) if database_url.startswith("postgresql") else None
    if other is not None:
        modes = {item["name"]: item["mode"] for item in other.items("sources")}
        assert modes == {"hookmesh": None, "github": None, "ingest": "background"}
