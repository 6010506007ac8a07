"""The example app with filters and review, run by the real command."""

import json

import httpx

from support.database import RawDatabase
from support.processes import PAID_ORDERS, Serve
from tests.integration.running import JSON, digest

SECRET = "an-example-secret-of-the-shop"
ACT = {"actor": "ann", "reason": "it is an order"}


def send(service: Serve, event_id: str, type: str = "order.updated", **more: object) -> None:
    order = {"id": event_id, "status": "paid", "total": 50}
    document = {"type": type, "order": order, "test": False, **more}
    document["order"] = {**order, **more.get("order", {})}  # type: ignore[dict-item] # a mapping
    body = json.dumps(document).encode()
    headers = JSON | {"x-event-id": event_id, "x-signature": digest(SECRET, body)}
    response = service.http.post("/webhooks/shop", content=body, headers=headers)
    assert response.status_code == 202, response.text


def act(service: Serve, path: str, **more: str) -> httpx.Response:
    return service.http.post(f"/admin/events/{path}", json={**ACT, **more})


def test_only_paid_orders_are_shipped_and_unknown_types_wait(
    database_url: str, raw_db: RawDatabase
) -> None:
    with Serve(PAID_ORDERS, database_url, forked=True) as service:
        send(service, "paid")
        send(service, "open", order={"status": "open"})
        send(service, "test", test=True)
        send(service, "expensive", order={"total": 500})
        send(service, "gift", "gift.bought")
        send(service, "noise", "cart.viewed")
        service.wait_until_idle()
        outcomes = {
            (job["external_event_id"], job["handler"]): (job["status"], job["failure_type"])
            for job in service.items("jobs")
        }
        noise, gift = service.items("events", status="review")
        assert act(service, f"{noise['id']}/dismiss").status_code == 200
        assert act(service, f"{gift['id']}/route", handler="ship").status_code == 200
        service.wait_until_idle()
        assert service.items("events", status="review") == []
        states = {item["event_id"]: item["processing_state"] for item in service.items("events")}
        audit = [entry["action"] for entry in service.items("audit")]
    filtered, done = ("ignored", "filtered"), ("done", None)
    assert outcomes == {
        ("paid", "ship"): done, ("paid", "insure"): filtered,
        ("open", "insure"): filtered, ("test", "insure"): filtered,
        ("expensive", "ship"): done, ("expensive", "insure"): done,
    }  # fmt: skip
    assert states == {
        "paid": "succeeded", "open": "ignored", "test": "ignored", "expensive": "succeeded",
        "gift": "succeeded", "noise": "ignored",
    }  # fmt: skip
    assert audit == ["route", "dismiss"]
    assert sorted(raw_db.rows("SELECT order_id, insured FROM shipments")) == [
        ("expensive", 0), ("expensive", 1), ("gift", 0), ("paid", 0),
    ]  # fmt: skip
