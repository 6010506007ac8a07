"""What is accepted over HTTP, how it is answered, and what is kept of it."""

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest
import stripe

from support.processes import eventually
from tests.integration.conftest import Serve
from tests.integration.running import (
    JSON,
    PARTNER_SECRET,
    STRIPE_OLD_SECRET,
    STRIPE_SECRET,
    VERIFY_TOKEN,
    RunningInbox,
    digest,
    github_webhook,
    partner_webhook,
    request,
    stripe_webhook,
)


def test_an_event_is_answered_when_it_is_in_the_ledger(service: RunningInbox) -> None:
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


def test_a_redelivery_is_a_duplicate_of_the_first(service: RunningInbox) -> None:
    first, second = service.post("evt_1").json(), service.post("evt_1").json()
    assert second == first | {"duplicate": True}
    (event,) = service.items("events")
    assert event["deliveries"] == 2
    assert [item["outcome"] for item in service.items("deliveries")] == ["duplicate", "recorded"]


def test_another_body_under_the_same_id_is_a_conflict_and_changes_nothing(
    service: RunningInbox,
) -> None:
    first = service.post("evt_1").json()
    kept = service.payload("evt_1")
    second = service.post("evt_1", payload={"order": 8})
    assert second.status_code == 202
    assert second.json() == first | {"duplicate": True, "conflict": True}
    assert service.payload("evt_1") == kept
    ((body,),) = service.raw_db.rows("SELECT body FROM onceward.deliveries")
    assert json.loads(bytes(body))["payload"] == {"order": 8}
    (event,) = service.items("events")
    assert (event["deliveries"], event["conflicts"]) == (2, 1)
    assert len(service.items("jobs")) == 1


def test_one_id_sent_by_many_at_once_is_one_event(service: RunningInbox) -> None:
    with ThreadPoolExecutor(20) as senders:
        answers = list(senders.map(lambda _: service.post("evt_1").json(), range(60)))
    assert sorted(answer["duplicate"] for answer in answers) == [False] + [True] * 59
    assert len({answer["id"] for answer in answers}) == 1
    assert service.rows()[:2] == (1, 1)


def test_what_stripes_own_library_signs_is_accepted(service: RunningInbox) -> None:
    sent = stripe_webhook("evt_1")
    stripe.Webhook.construct_event(sent.body, sent.headers["stripe-signature"], STRIPE_SECRET)
    response = service.signed(sent)
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
    response = service.signed(github_webhook("d-1", body, event="issues"))
    assert (response.status_code, response.json()["event_id"]) == (202, "d-1")
    (event,) = service.items("events")
    assert event["event_type"] == "issues.opened"
    assert event["related_reference"] == "ann/inbox"
    assert event["processing_state"] == "ignored"


def test_a_plain_hmac_over_the_body_is_accepted(service: RunningInbox) -> None:
    response = service.signed(partner_webhook("evt_1"))
    assert (response.status_code, response.json()["source"]) == (202, "partner")
    assert service.settled_job("evt_1")["status"] == "done"


def several(service: RunningInbox, *events: dict[str, str]) -> httpx.Response:
    body = json.dumps({"events": events, "meta": {"webhook_id": "WB1"}}).encode()
    headers = {"Webhook-Signature": digest(PARTNER_SECRET, body)}
    return service.http.post("/webhooks/gocardless", content=body, headers=headers)


def test_several_events_in_one_request_are_recorded_each_by_itself(service: RunningInbox) -> None:
    one = {"id": "EV1", "resource_type": "order", "action": "paid"}
    two = {"id": "EV2", "resource_type": "payments", "action": "failed"}
    first = several(service, one, two)
    assert first.status_code == 202
    assert [event["event_id"] for event in first.json()["events"]] == ["EV1", "EV2"]
    service.settled_job("EV1")
    assert json.loads(service.payload("EV2")[0]) == two

    again = several(service, two, {"id": "EV3", "resource_type": "order", "action": "paid"})
    assert [event["duplicate"] for event in again.json()["events"]] == [True, False]
    found = service.items("events")
    assert {(it["event_id"], it["event_type"], it["deliveries"]) for it in found} == {
        ("EV1", "order.paid", 1),
        ("EV2", "payments.failed", 2),
        ("EV3", "order.paid", 1),
    }


def test_a_request_of_no_events_is_accepted_and_leaves_nothing(service: RunningInbox) -> None:
    answer = several(service)
    assert (answer.status_code, answer.json()) == (
        202,
        {"accepted": True, "events": [], "source": "gocardless"},
    )
    assert service.rows() == (0, 0, 0)


def test_a_sender_that_asks_first_is_answered_as_it_insists(sqlite_url: str, serve: Serve) -> None:
    running = serve(sqlite_url)
    asked = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "42"}
    told = running.http.get("/webhooks/meta", params=asked)
    assert (told.status_code, told.text) == (200, "42")
    assert told.headers["content-type"] == "text/plain; charset=utf-8"
    assert told.headers["x-content-type-options"] == "nosniff"
    assert running.http.get("/webhooks/meta").status_code == 403
    assert running.http.head("/webhooks/trello").status_code == 200
    refused = running.http.get("/webhooks/trello")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST, HEAD")

    body = b'{"events":[]}'
    signature = base64.b64encode(bytes.fromhex(digest(PARTNER_SECRET, body))).decode()
    for sent, status in ((signature, 200), ("AAAA", 401)):
        headers = {"x-xero-signature": sent}
        answer = running.http.post("/webhooks/xero", content=body, headers=headers)
        assert answer.status_code == status
        assert (answer.content == b"") == (status == 200)
    assert running.rows() == (0, 0, 0)


def test_while_a_secret_is_replaced_both_are_accepted(service: RunningInbox) -> None:
    new = service.signed(stripe_webhook("evt_1", secret=STRIPE_SECRET))
    old = service.signed(stripe_webhook("evt_2", secret=STRIPE_OLD_SECRET))
    retired = service.signed(stripe_webhook("evt_3", secret="whsec_an_even_older_one"))
    assert [new.status_code, old.status_code, retired.status_code] == [202, 202, 401]
    assert {event["event_id"] for event in service.items("events")} == {"evt_1", "evt_2"}


def test_a_replay_within_the_window_is_a_duplicate(service: RunningInbox) -> None:
    sent = stripe_webhook("evt_1")
    assert [service.signed(sent).json()["duplicate"] for _ in range(3)] == [False, True, True]
    assert service.rows() == (1, 1, 2)


def test_the_same_id_at_two_sources_is_two_events(service: RunningInbox) -> None:
    answers = [
        service.post("evt_1").json(),
        service.signed(stripe_webhook("evt_1")).json(),
        service.signed(partner_webhook("evt_1")).json(),
    ]
    assert [answer["duplicate"] for answer in answers] == [False] * 3
    assert len({answer["id"] for answer in answers}) == 3
    sources = {event["source"] for event in service.items("events", event_id="evt_1")}
    assert sources == {"ingest", "stripe", "partner"}


def test_the_body_is_kept_byte_for_byte_with_few_headers(service: RunningInbox) -> None:
    body = b'{ "type":"order.paid",\n\t"caf\xc3\xa9": 1e2, "z": "\\u0000", "a": 1, "a": 2 }  '
    sent = partner_webhook("evt_1", body)
    secret = {"authorization": "Bearer hidden", "cookie": "session=hidden", "x-other": "no"}
    response = service.http.post(
        "/webhooks/partner",
        content=body,
        headers=sent.headers | secret | {"user-agent": "partner/1.0"},
    )
    assert response.status_code == 202
    kept, headers = service.payload("evt_1")
    assert kept == body
    assert headers == {"content-type": "application/json", "user-agent": "partner/1.0"}


def test_a_body_in_chunks_is_the_same_delivery(shared: RunningInbox) -> None:
    sent = partner_webhook("chunked")
    first = shared.signed(sent).json()
    chunks = (bytes([byte]) for byte in sent.body)
    second = shared.http.post("/webhooks/partner", content=chunks, headers=sent.headers).json()
    assert second == first | {"duplicate": True}


def test_several_requests_on_one_connection_are_answered_in_their_order(
    shared: RunningInbox,
) -> None:
    sent = [partner_webhook(f"pipelined-{number}") for number in range(5)]
    with shared.raw() as connection:
        connection.send(
            b"".join(request("/webhooks/partner", it.body, headers=it.headers) for it in sent)
        )
        answers = [json.loads(connection.answer().body)["event_id"] for _ in sent]
    assert answers == [f"pipelined-{number}" for number in range(5)]


def test_a_refused_request_among_others_keeps_its_place(shared: RunningInbox) -> None:
    good = [partner_webhook(f"among-{number}") for number in range(3)]
    forged = [replace(it, headers=it.headers | {"x-signature": "00"}) for it in good]
    sent = [forged[0], good[0], forged[1], forged[2], good[1]]
    with shared.raw() as connection:
        connection.send(
            b"".join(request("/webhooks/partner", it.body, headers=it.headers) for it in sent)
        )
        assert [connection.answer().status for _ in sent] == [401, 202, 401, 401, 202]


def test_many_refused_requests_in_one_piece_are_all_answered(shared: RunningInbox) -> None:
    with shared.raw() as connection:
        connection.send(request("/webhooks/partner", b"{}", headers=JSON) * 400)
        assert {connection.answer().status for _ in range(400)} == {401}


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_request_in_two_pieces_is_the_same_delivery(shared: RunningInbox, cut: int) -> None:
    sent = partner_webhook(f"cut-{cut}")
    whole = request("/webhooks/partner", sent.body, headers=sent.headers)
    with shared.raw() as connection:
        connection.send(whole[:cut])
        time.sleep(0.05)
        connection.send(whole[cut:])
        assert json.loads(connection.answer().body)["duplicate"] is False
        connection.send(whole)
        assert json.loads(connection.answer().body)["duplicate"] is True


def test_a_connection_that_is_to_end_ends_after_its_answer(shared: RunningInbox) -> None:
    sent = partner_webhook("ends")
    with shared.raw() as connection:
        headers = sent.headers | {"connection": "close"}
        connection.send(request("/webhooks/partner", sent.body, headers=headers))
        answer = connection.answer()
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert connection.is_closed()


def test_a_sender_that_waits_for_leave_to_send_gets_it(shared: RunningInbox) -> None:
    sent = partner_webhook("expects")
    headers = sent.headers | {"expect": "100-continue", "content-length": str(len(sent.body))}
    with shared.raw() as connection:
        connection.send(request("/webhooks/partner", headers=headers))
        assert connection.answer().status == 100
        connection.send(sent.body)
        assert connection.answer().status == 202


def test_a_sender_that_leaves_before_the_answer_finds_its_event_recorded(
    shared: RunningInbox,
) -> None:
    sent = partner_webhook("left")
    with shared.raw() as connection:
        connection.send(request("/webhooks/partner", sent.body, headers=sent.headers))
        eventually(lambda: shared.items("events", event_id="left"), "the event is there")
        connection.reset()
    assert shared.signed(sent).json()["duplicate"] is True


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_be_announced_in_any_spelling(shared: RunningInbox, kind: str) -> None:
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


def test_an_upgrade_that_nobody_asked_for_is_passed_over(shared: RunningInbox) -> None:
    sent = partner_webhook("upgrade")
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAM"}
    with shared.raw() as connection:
        connection.send(request("/webhooks/partner", sent.body, headers=sent.headers | offer))
        assert connection.answer().status == 202


def test_redeliveries_beyond_the_limit_are_counted_only(sqlite_url: str, serve: Serve) -> None:
    service = serve(sqlite_url, delivery_rows=2)
    for _ in range(6):
        assert service.post("evt_1", headers=JSON).status_code == 202
    assert service.rows() == (1, 1, 2)
    assert service.items("events")[0]["deliveries"] == 6
