"""Receiving over HTTP: accepted requests, their responses, and what is stored."""

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest
import stripe

from onceward import Inbox
from support.database import RawDatabase
from support.processes import eventually
from tests.inprocess import receive_only
from tests.integration.conftest import Serve
from tests.integration.running import (
    JSON,
    PARTNER_SECRET,
    STRIPE_OLD_SECRET,
    STRIPE_SECRET,
    VERIFY_TOKEN,
    RunningInbox,
    SignedWebhook,
    digest,
    github_webhook,
    partner_webhook,
    request,
    stripe_webhook,
)

pytestmark = pytest.mark.every_transport


def test_an_event_is_in_the_ledger_when_its_sender_gets_202(service: RunningInbox) -> None:
    response = service.post("evt_1", reference="order_7")
    (row,) = service.raw_db.rows("SELECT id, event_id, type, reference FROM onceward.events")
    assert response.status_code == 202
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "accepted": True,
        "duplicate": False,
        "conflict": False,
        "source": "ingest",
        "event_id": "evt_1",
        "id": str(row[0]),
    }
    assert row[1:] == ("evt_1", "order.paid", "order_7")


def test_a_redelivery_is_a_duplicate(service: RunningInbox) -> None:
    first, second = service.post("evt_1").json(), service.post("evt_1").json()
    assert second == first | {"duplicate": True}
    (event,) = service.items("events")
    assert event["deliveries"] == 2
    assert [item["outcome"] for item in service.items("deliveries")] == ["duplicate", "recorded"]


def test_another_body_with_the_same_id_is_a_conflict_and_changes_nothing(
    service: RunningInbox,
) -> None:
    first = service.post("evt_1").json()
    stored = service.payload("evt_1")
    second = service.post("evt_1", payload={"order": 8})
    assert second.status_code == 202
    assert second.json() == first | {"duplicate": True, "conflict": True}
    assert service.payload("evt_1") == stored
    ((body,),) = service.raw_db.rows("SELECT body FROM onceward.deliveries")
    assert json.loads(bytes(body))["payload"] == {"order": 8}
    (event,) = service.items("events")
    assert (event["deliveries"], event["conflicts"]) == (2, 1)
    assert len(service.items("jobs")) == 1


def test_concurrent_requests_with_one_id_record_one_event(service: RunningInbox) -> None:
    with ThreadPoolExecutor(20) as senders:
        responses = list(senders.map(lambda _: service.post("evt_1").json(), range(60)))
    assert sorted(response["duplicate"] for response in responses) == [False] + [True] * 59
    assert len({response["id"] for response in responses}) == 1
    assert service.rows()[:2] == (1, 1)


def test_a_webhook_signed_by_stripes_library_is_accepted(service: RunningInbox) -> None:
    sent = stripe_webhook("evt_1")
    stripe.Webhook.construct_event(sent.body, sent.headers["stripe-signature"], STRIPE_SECRET)
    response = service.send(sent)
    assert response.status_code == 202
    assert response.json()["source"] == "stripe"
    (event,) = service.items("events")
    assert event["source"] == "stripe"
    assert event["event_id"] == "evt_1"
    assert event["event_type"] == "invoice.paid"
    assert event["related_reference"] == "in_1"
    assert service.settled_job("evt_1")["status"] == "done"


def test_a_github_webhook_has_its_id_and_type_in_headers(service: RunningInbox) -> None:
    body = b'{"action": "opened", "repository": {"full_name": "ann/inbox"}}'
    response = service.send(github_webhook("d-1", body, event="issues"))
    assert (response.status_code, response.json()["event_id"]) == (202, "d-1")
    (event,) = service.items("events")
    assert event["event_type"] == "issues.opened"
    assert event["related_reference"] == "ann/inbox"
    assert event["processing_state"] == "ignored"


def test_a_plain_hmac_over_the_body_is_accepted(service: RunningInbox) -> None:
    response = service.send(partner_webhook("evt_1"))
    assert (response.status_code, response.json()["source"]) == (202, "partner")
    assert service.settled_job("evt_1")["status"] == "done"


def post_events(service: RunningInbox, *events: dict[str, str]) -> httpx.Response:
    body = json.dumps({"events": events, "meta": {"webhook_id": "WB1"}}).encode()
    headers = {"Webhook-Signature": digest(PARTNER_SECRET, body)}
    return service.http.post("/webhooks/gocardless", content=body, headers=headers)


def test_several_events_in_one_request_are_recorded_separately(service: RunningInbox) -> None:
    one = {"id": "EV1", "resource_type": "order", "action": "paid"}
    two = {"id": "EV2", "resource_type": "payments", "action": "failed"}
    first = post_events(service, one, two)
    assert first.status_code == 202
    assert [event["event_id"] for event in first.json()["events"]] == ["EV1", "EV2"]
    service.settled_job("EV1")
    assert json.loads(service.payload("EV2")[0]) == two

    again = post_events(service, two, {"id": "EV3", "resource_type": "order", "action": "paid"})
    assert [event["duplicate"] for event in again.json()["events"]] == [True, False]
    events = service.items("events")
    assert {(event["event_id"], event["event_type"], event["deliveries"]) for event in events} == {
        ("EV1", "order.paid", 1),
        ("EV2", "payments.failed", 2),
        ("EV3", "order.paid", 1),
    }


def test_a_request_without_events_is_accepted_and_records_nothing(service: RunningInbox) -> None:
    response = post_events(service)
    assert (response.status_code, response.json()) == (
        202,
        {"accepted": True, "events": [], "source": "gocardless"},
    )
    assert service.rows() == (0, 0, 0)


def test_challenges_get_the_response_that_the_provider_expects(
    sqlite_url: str, serve: Serve
) -> None:
    running = serve(sqlite_url)
    challenge = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "42"}
    accepted = running.http.get("/webhooks/meta", params=challenge)
    assert (accepted.status_code, accepted.text) == (200, "42")
    assert accepted.headers["content-type"] == "text/plain; charset=utf-8"
    assert accepted.headers["x-content-type-options"] == "nosniff"
    assert running.http.get("/webhooks/meta").status_code == 403
    assert running.http.head("/webhooks/trello").status_code == 200
    refused = running.http.get("/webhooks/trello")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST, HEAD")

    body = b'{"events":[]}'
    signature = base64.b64encode(bytes.fromhex(digest(PARTNER_SECRET, body))).decode()
    for sent, status in ((signature, 200), ("AAAA", 401)):
        headers = {"x-xero-signature": sent}
        response = running.http.post("/webhooks/xero", content=body, headers=headers)
        assert response.status_code == status
        assert (response.content == b"") == (status == 200)
    assert running.rows() == (0, 0, 0)


def test_both_secrets_are_accepted_during_a_rotation(service: RunningInbox) -> None:
    new = service.send(stripe_webhook("evt_1", secret=STRIPE_SECRET))
    old = service.send(stripe_webhook("evt_2", secret=STRIPE_OLD_SECRET))
    retired = service.send(stripe_webhook("evt_3", secret="whsec_stripe_retired_secret"))
    assert [new.status_code, old.status_code, retired.status_code] == [202, 202, 401]
    assert {event["event_id"] for event in service.items("events")} == {"evt_1", "evt_2"}


def test_a_replay_within_the_tolerance_is_a_duplicate(service: RunningInbox) -> None:
    sent = stripe_webhook("evt_1")
    assert [service.send(sent).json()["duplicate"] for _ in range(3)] == [False, True, True]
    assert service.rows() == (1, 1, 2)


def test_the_same_id_at_several_sources_is_several_events(service: RunningInbox) -> None:
    responses = [
        service.post("evt_1").json(),
        service.send(stripe_webhook("evt_1")).json(),
        service.send(partner_webhook("evt_1")).json(),
    ]
    assert [response["duplicate"] for response in responses] == [False] * 3
    assert len({response["id"] for response in responses}) == 3
    sources = {event["source"] for event in service.items("events", event_id="evt_1")}
    assert sources == {"ingest", "stripe", "partner"}


def test_the_body_is_stored_byte_for_byte_with_allowed_headers(service: RunningInbox) -> None:
    body = b'{ "type":"order.paid",\n\t"caf\xc3\xa9": 1e2, "z": "\\u0000", "a": 1, "a": 2 }  '
    sent = partner_webhook("evt_1", body)
    secret = {"authorization": "Bearer hidden", "cookie": "session=hidden", "x-other": "no"}
    response = service.http.post(
        "/webhooks/partner",
        content=body,
        headers=sent.headers | secret | {"user-agent": "partner/1.0"},
    )
    assert response.status_code == 202
    stored, headers = service.payload("evt_1")
    assert stored == body
    assert headers == {"content-type": "application/json", "user-agent": "partner/1.0"}


def test_a_chunked_body_is_received_like_any_other(shared: RunningInbox) -> None:
    sent = partner_webhook("chunked")
    first = shared.send(sent).json()
    chunks = (bytes([byte]) for byte in sent.body)
    second = shared.http.post("/webhooks/partner", content=chunks, headers=sent.headers).json()
    assert second == first | {"duplicate": True}


def partner_request(webhook: SignedWebhook) -> bytes:
    """Return the raw HTTP request of a webhook for the source partner."""
    return request("/webhooks/partner", webhook.body, headers=webhook.headers)


def test_pipelined_requests_get_their_responses_in_order(shared: RunningInbox) -> None:
    sent = [partner_webhook(f"pipelined-{number}") for number in range(5)]
    with shared.connect() as connection:
        connection.send(b"".join(partner_request(webhook) for webhook in sent))
        responses = [json.loads(connection.read_response().body)["event_id"] for _ in sent]
    assert responses == [f"pipelined-{number}" for number in range(5)]


def test_a_rejected_request_keeps_its_position_among_pipelined_ones(shared: RunningInbox) -> None:
    good = [partner_webhook(f"among-{number}") for number in range(3)]
    forged = [replace(valid, headers=valid.headers | {"x-signature": "00"}) for valid in good]
    sent = [forged[0], good[0], forged[1], forged[2], good[1]]
    with shared.connect() as connection:
        connection.send(b"".join(partner_request(webhook) for webhook in sent))
        assert [connection.read_response().status for _ in sent] == [401, 202, 401, 401, 202]


def test_many_rejected_requests_in_one_write_all_get_a_response(shared: RunningInbox) -> None:
    with shared.connect() as connection:
        forged = JSON | {"x-signature": "00"}
        connection.send(request("/webhooks/partner", b"{}", headers=forged) * 400)
        assert {connection.read_response().status for _ in range(400)} == {401}


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_request_in_two_writes_is_received_like_any_other(shared: RunningInbox, cut: int) -> None:
    sent = partner_webhook(f"cut-{cut}")
    data = partner_request(sent)
    with shared.connect() as connection:
        connection.send(data[:cut])
        time.sleep(0.05)
        connection.send(data[cut:])
        assert json.loads(connection.read_response().body)["duplicate"] is False
        connection.send(data)
        assert json.loads(connection.read_response().body)["duplicate"] is True


def test_connection_close_is_honoured_after_the_response(shared: RunningInbox) -> None:
    sent = partner_webhook("close")
    with shared.connect() as connection:
        headers = sent.headers | {"connection": "close"}
        connection.send(request("/webhooks/partner", sent.body, headers=headers))
        response = connection.read_response()
        assert (response.status, response.headers["connection"]) == (202, "close")
        assert connection.is_closed()


def test_expect_100_continue_is_honoured(shared: RunningInbox) -> None:
    sent = partner_webhook("expects")
    headers = sent.headers | {"expect": "100-continue", "content-length": str(len(sent.body))}
    with shared.connect() as connection:
        connection.send(request("/webhooks/partner", headers=headers))
        assert connection.read_response().status == 100
        connection.send(sent.body)
        assert connection.read_response().status == 202


def test_a_sender_that_disconnects_early_finds_its_event_recorded(
    shared: RunningInbox,
) -> None:
    sent = partner_webhook("left")
    with shared.connect() as connection:
        connection.send(partner_request(sent))
        eventually(lambda: shared.items("events", event_id="left"), "the event is recorded")
        connection.reset()
    assert shared.send(sent).json()["duplicate"] is True


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_the_json_content_type_may_have_parameters_and_any_case(
    shared: RunningInbox, kind: str
) -> None:
    body = json.dumps({"event_id": f"kind-{kind}", "event_type": "x", "payload": None})
    response = shared.http.post("/events/ingest", content=body, headers={"content-type": kind})
    assert response.status_code == 202


def test_a_signed_webhook_may_have_any_content_type(shared: RunningInbox) -> None:
    body = b"type=order.paid&amount=7"
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "x-event-id": "form",
        "x-signature": digest(PARTNER_SECRET, body),
    }
    response = shared.http.post("/webhooks/partner", content=body, headers=headers)
    assert response.status_code == 202
    assert shared.payload("form")[0] == body


def test_an_upgrade_offer_is_ignored(shared: RunningInbox) -> None:
    sent = partner_webhook("upgrade")
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAM"}
    with shared.connect() as connection:
        connection.send(request("/webhooks/partner", sent.body, headers=sent.headers | offer))
        assert connection.read_response().status == 202


def test_redeliveries_beyond_the_limit_are_only_counted(sqlite_url: str, serve: Serve) -> None:
    service = serve(sqlite_url, delivery_rows=2)
    for _ in range(6):
        assert service.post("evt_1", headers=JSON).status_code == 202
    assert service.rows() == (1, 1, 2)
    assert service.items("events")[0]["deliveries"] == 6


async def test_a_long_header_of_an_own_event_is_not_stored_but_named(sqlite_url: str) -> None:
    async with receive_only(Inbox(), sqlite_url) as running:
        event = b'{"event_id": "evt_1", "event_type": "t", "payload": 1}'
        headers = {"content-type": "application/json", "user-agent": "a" * 1025}
        response = await running.deliver("/events/ingest", event, headers)
        assert response.status_code == 202, response.text
    stored = RawDatabase(sqlite_url).value("SELECT headers FROM onceward.payloads")
    assert json.loads(stored) == {
        "content-type": "application/json",
        "onceward-omitted-headers": "user-agent",
    }
