"""The example app with versions: a plan that was cancelled does not come back to life."""

import itertools
from collections.abc import Iterator

import pytest

from support.database import RawDatabase
from support.processes import PLANS, Serve

EVENTS = (
    ("evt_1", "plan.created", "trial", 100),
    ("evt_2", "plan.updated", "active", 200),
    ("evt_3", "plan.cancelled", "cancelled", 300),
)


@pytest.fixture
def service(database_url: str) -> Iterator[Serve]:
    with Serve(PLANS, database_url, forked=True) as running:
        yield running


def test_a_cancelled_plan_stays_cancelled_in_every_order(
    service: Serve, raw_db: RawDatabase
) -> None:
    for number, order in enumerate(itertools.permutations(EVENTS)):
        for event_id, type_, status, changed_at in order:
            payload = {"id": f"plan_{number}", "status": status, "changed_at": changed_at}
            service.accept(f"{event_id} {number}", type_, payload)
    service.wait_until_idle()
    assert set(raw_db.rows("SELECT status FROM plans")) == {("cancelled",)}
    assert raw_db.count("plans") == 6


def test_an_operator_may_bring_it_back(service: Serve, raw_db: RawDatabase) -> None:
    for event_id, type_, status, changed_at in reversed(EVENTS):
        payload = {"id": "plan_1", "status": status, "changed_at": changed_at}
        service.accept(event_id, type_, payload)
        service.wait_until_idle()
    late = service.job("evt_2")
    assert (late["status"], late["failure_type"]) == ("ignored", "stale")
    assert late["last_error"] == "stale: version 200 is older than 300, which event evt_3 applied"
    for more, status in ({}, "cancelled"), ({"even_if_stale": True}, "active"):
        response = service.requeue(late["id"], actor="ann", reason="a mistake", **more)
        assert response.status_code == 200
        service.wait_until_idle()
        assert raw_db.rows("SELECT status FROM plans") == [(status,)]
    assert service.job("evt_2")["status"] == "done"
    actions = [entry["action"] for entry in service.items("audit")]
    assert actions == ["manual_requeue_even_if_stale", "manual_requeue"]
