"""Rejected requests, conflicts, provisioned secrets, proxies and the dedupe window."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import ANY

import httpx
import pytest

import onceward
from onceward import ConfigurationError, Event, Inbox
from support.processes import Item, eventually
from tests.integration.conftest import Serve
from tests.integration.running import (
    STRIPE_OLD_SECRET,
    STRIPE_SECRET,
    RunningInbox,
    SignedWebhook,
    digest,
    github_webhook,
    request,
    stripe_webhook,
)

ACTION = {"actor": "ann", "reason": "the secret was incomplete"}
VERIFY_TOKEN = "our-verify-token"


def make(url: str, secret: str, **options: Any) -> Inbox:
    inbox = Inbox(url)
    inbox.source("stripe", secrets=[secret], **options)

    @inbox.on("invoice.paid")
    async def credit(event: Event[Any]) -> None:
        assert event.payload["id"]

    return inbox


def act(service: RunningInbox, path: str) -> httpx.Response:
    return service.http.post(f"/admin/{path}", json=ACTION)


def rejections(service: RunningInbox, count: int = 1) -> list[Item]:
    return eventually(
        lambda: listed if len(listed := service.items("rejections")) >= count else [],
        "the rejections are listed",
    )


# Rejections.


def test_the_reason_of_a_rejection_is_shown_to_operators_only(service: RunningInbox) -> None:
    response = service.send(stripe_webhook(secret="whsec_another_account"))
    assert response.status_code == 401
    assert response.json()["message"] == "The signature was not accepted."
    (listed,) = rejections(service)
    assert (listed["source"], listed["cause"]) == ("stripe", "mismatch")
    assert listed["check"] == "no signature matched any of 2 secrets"
    assert (listed["kept"], listed["count"]) == (False, 1)
    assert service.rows() == (0, 0, 0)
    response = act(service, f"rejections/{listed['id']}/verify")
    assert response.status_code == 409
    assert "was not kept. Set keep_rejected=True" in response.json()["message"]


def test_rejections_are_stored_when_the_service_stops(service: RunningInbox) -> None:
    for number in range(3):
        service.send(stripe_webhook(f"evt_{number}", secret="whsec_another_account"))
    service.close()
    counted = service.raw_db.value("SELECT sum(count) FROM onceward.rejection_counts")
    assert int(counted) == 3


def test_a_flood_of_rejections_is_counted_in_few_rows(service: RunningInbox) -> None:
    for number in range(200):
        headers = {"stripe-signature": f"t={number},v1=00"}
        assert service.http.post("/webhooks/stripe", headers=headers).status_code == 401

    def counted() -> int:
        counts = service.http.get("/admin/rejections").json()["counts"]
        return sum(count["count"] for count in counts if count["cause"] == "timestamp")

    eventually(lambda: counted() == 200, "all are counted")
    assert len(service.items("rejections", limit="1000")) < 150


@pytest.mark.every_transport
def test_a_request_without_a_proof_is_refused_before_its_body(
    database_url: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(database_url)
    whole = service.http.post("/webhooks/stripe", content=b"{}")
    with service.connect() as connection:
        head = request("/webhooks/stripe", headers={"content-length": "1000000"})
        response = connection.send(head).read_response()
        assert connection.is_closed()
    assert (response.status, response.body) == (whole.status_code, whole.content) == (401, ANY)
    assert response.headers["connection"] == "close"
    (listed,) = rejections(service)
    assert (listed["cause"], listed["check"]) == ("missing", "no Stripe-Signature header")
    assert (listed["kept"], listed["count"]) == (False, 2)
    assert "/webhooks/stripe: 401: no Stripe-Signature header; `onceward verify" in caplog.text


@pytest.mark.every_transport
def test_a_kept_request_without_a_proof_is_read_to_its_end(database_url: str, serve: Serve) -> None:
    service = serve(make(database_url, STRIPE_SECRET, keep_rejected=True))
    with service.connect() as connection:
        data = request("/webhooks/stripe", b"the body", headers={})
        connection.send(data[:-1])
        assert not connection.is_closed(0.3)
        connection.send(data[-1:])
        assert connection.read_response().status == 401
    (listed,) = rejections(service)
    assert listed["kept"]
    assert service.raw_db.value("SELECT body FROM onceward.rejections") == b"the body"


@pytest.mark.every_transport
def test_a_kept_request_is_recorded_once_the_secret_is_corrected(
    database_url: str, serve: Serve
) -> None:
    wrong = serve(make(database_url, STRIPE_OLD_SECRET, keep_rejected=True))
    sent = stripe_webhook("evt_7", secret=STRIPE_SECRET)
    assert wrong.send(sent).status_code == 401
    (listed,) = rejections(wrong)
    assert listed["kept"]
    response = act(wrong, f"rejections/{listed['id']}/verify")
    assert (response.status_code, response.json()["error"]) == (409, "not_in_state")
    assert "The request does not verify: no signature matched" in response.json()["message"]
    wrong.close()

    right = serve(make(database_url, STRIPE_SECRET, keep_rejected=True))
    response = act(right, f"rejections/{listed['id']}/verify")
    assert response.status_code == 200, response.text
    (event,) = response.json()["events"]
    assert event["outcome"] == "recorded"
    assert right.settled_job("evt_7")["status"] == "done"
    assert right.payload("evt_7")[0] == sent.body
    (listed,) = rejections(right)
    assert (listed["received_as"], listed["kept"]) == (event["id"], False)
    (entry,) = right.items("audit")
    assert (entry["action"], entry["actor"]) == ("verify_again", "ann")
    assert act(right, f"rejections/{listed['id']}/verify").status_code == 409
    assert right.send(sent).json()["duplicate"]


def test_a_kept_request_is_verified_as_of_its_arrival(database_url: str, serve: Serve) -> None:
    service = serve(make(database_url, STRIPE_SECRET, keep_rejected=True))
    service.send(stripe_webhook("evt_old", now=int(time.time()) - 5000))
    (listed,) = rejections(service)
    assert listed["cause"] == "timestamp"
    assert "s off" in act(service, f"rejections/{listed['id']}/verify").json()["message"]
    earlier = "5000000000" if service.raw_db.is_sqlite else "interval '5000 seconds'"
    service.raw_db.rows(
        f"UPDATE onceward.rejections SET received_at = received_at - {earlier}"  # noqa: S608 - the test's own values
    )
    assert act(service, f"rejections/{listed['id']}/verify").status_code == 200


@pytest.mark.parametrize("path", ["rejections/999/verify", "deliveries/999/accept"])
def test_a_missing_row_gets_404_and_a_missing_actor_422(service: RunningInbox, path: str) -> None:
    assert act(service, path).status_code == 404
    assert service.http.post(f"/admin/{path}", json={"actor": "ann"}).status_code == 422


def test_a_rejected_challenge_is_logged(
    service: RunningInbox, caplog: pytest.LogCaptureFixture
) -> None:
    challenge = "hub.mode=subscribe&hub.verify_token=wrong&hub.challenge=1"
    assert service.http.get(f"/webhooks/meta?{challenge}").status_code == 403
    service.http.post("/webhooks/stripe", content=b"{}")
    service.http.post("/webhooks/github", content=b"{}")
    lines = [record.getMessage() for record in caplog.records if record.name == "onceward.http"]
    assert [line.partition(":")[0] for line in lines] == [
        "/webhooks/meta",
        "/webhooks/stripe",
        "/webhooks/github",
    ]
    assert "challenge rejected; check the source's verify_token" in lines[0]


# Conflicts.


def test_a_conflict_can_be_accepted_as_a_new_event(service: RunningInbox) -> None:
    assert service.send(stripe_webhook("evt_1")).status_code == 202
    assert service.settled_job("evt_1")["status"] == "done"
    other = stripe_webhook("evt_1", data={"object": {"id": "in_2"}}, type="order.broken")
    assert service.send(other).json()["conflict"]
    (conflict,) = service.items("deliveries", status="conflict")
    response = act(service, f"deliveries/{conflict['id']}/accept")
    assert response.status_code == 200, response.text
    (event, first) = service.items("events")
    assert event["id"] == response.json()["events"][0]["id"]
    assert event["event_id"].startswith("evt_1#")
    # Type and reference come from the conflicting body.
    assert (event["event_type"], event["related_reference"]) == ("order.broken", "in_2")
    assert first["conflicts"] == 1
    assert service.settled_job(event["event_id"])["failure_type"] == "permanent"
    assert act(service, f"deliveries/{conflict['id']}/accept").status_code == 409
    (conflict,) = service.items("deliveries", status="conflict")
    assert conflict["accepted_as"] == event["id"]
    assert service.items("audit")[0]["subject"] == f"delivery:{conflict['id']}"


def test_an_accepted_envelope_conflict_has_its_own_type_and_reference(
    service: RunningInbox,
) -> None:
    service.post("evt_1", "order.paid", reference="order_1")
    service.post("evt_1", "order.broken", reference="order_2")
    (conflict,) = service.items("deliveries", status="conflict")
    assert act(service, f"deliveries/{conflict['id']}/accept").status_code == 200
    event = service.items("events")[0]
    assert (event["event_type"], event["related_reference"]) == ("order.broken", "order_2")


def test_an_accepted_conflict_keeps_the_type_from_the_original_headers(
    service: RunningInbox,
) -> None:
    service.send(github_webhook("g1", b'{"ref":"a"}'))
    service.send(github_webhook("g1", b'{"ref":"b","action":"made"}'))
    (conflict,) = service.items("deliveries", status="conflict")
    assert act(service, f"deliveries/{conflict['id']}/accept").status_code == 200
    assert service.items("events")[0]["event_type"] == "push"


def test_a_conflict_of_a_removed_source_cannot_be_accepted(database_url: str, serve: Serve) -> None:
    service = serve(make(database_url, STRIPE_SECRET))
    for reference in ("in_1", "in_2"):
        service.send(stripe_webhook("evt_1", data={"object": {"id": reference}}))
    (conflict,) = service.items("deliveries", status="conflict")
    service.close()
    without = serve(Inbox(database_url))
    response = act(without, f"deliveries/{conflict['id']}/accept")
    assert (response.status_code, response.json()["error"]) == (409, "not_in_state")


def test_exactly_one_of_many_concurrent_accepts_succeeds(service: RunningInbox) -> None:
    service.post("evt_1")
    service.post("evt_1", payload="another")
    (conflict,) = service.items("deliveries", status="conflict")
    with ThreadPoolExecutor(8) as operators:
        path = f"deliveries/{conflict['id']}/accept"
        statuses = list(operators.map(lambda _: act(service, path).status_code, range(8)))
    assert sorted(statuses) == [200] + [409] * 7
    assert len(service.items("audit")) == 1


def test_only_a_conflict_can_be_accepted(service: RunningInbox) -> None:
    for _ in range(2):
        service.post("evt_1")
    (duplicate, _) = service.items("deliveries")
    response = act(service, f"deliveries/{duplicate['id']}/accept")
    assert response.status_code == 409
    assert "is a duplicate; only a conflict" in response.json()["message"]


def test_volatile_fields_cause_no_conflict(service: RunningInbox) -> None:
    for pending in (2, 1, 0):
        service.send(stripe_webhook("evt_1", pending_webhooks=pending))
    (event,) = service.items("events")
    assert (event["deliveries"], event["conflicts"]) == (3, 0)
    service.send(stripe_webhook("evt_1", pending_webhooks=0, livemode=True))
    assert service.items("events")[0]["conflicts"] == 1


# Provisioned secrets.


def test_a_provisioned_secret_reaches_every_process(postgres_url: str, serve: Serve) -> None:
    def make_one() -> Inbox:
        inbox = Inbox(postgres_url)
        inbox.source("asana", verify_token=VERIFY_TOKEN)
        return inbox

    one, other = serve(make_one()), serve(make_one())
    body = json.dumps({"events": [{"action": "added", "resource": {"gid": "1"}}]}).encode()
    sent = SignedWebhook("asana", body, {"x-hook-signature": digest("provisioned-secret", body)})
    assert one.send(sent).status_code == 401
    headers = {"x-hook-secret": "provisioned-secret"}
    assert one.http.post("/webhooks/asana", headers=headers).status_code == 403
    response = one.http.post(f"/webhooks/asana?verify_token={VERIFY_TOKEN}", headers=headers)
    assert (response.status_code, response.headers["x-hook-secret"]) == (200, "provisioned-secret")
    assert one.send(sent).status_code == 202
    eventually(lambda: other.send(sent).status_code == 202, "the other process has the secret")
    third = serve(make_one())
    assert third.send(sent).json()["duplicate"]


def test_a_handover_does_not_push_out_a_secret_in_use(
    postgres_url: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def make_one() -> Inbox:
        inbox = Inbox(postgres_url)
        inbox.source("asana", verify_token=VERIFY_TOKEN)
        return inbox

    service = serve(make_one())
    statuses = [
        service.http.post(
            f"/webhooks/asana?verify_token={VERIFY_TOKEN}",
            headers={"x-hook-secret": f"secret-of-project-{number}"},
        ).status_code
        for number in (*range(20), 20, 0)
    ]
    assert statuses == [*[200] * 20, 400, 200]
    assert "a new secret was refused, because 20 are stored" in caplog.text
    other = serve(make_one())
    for number, status in ((0, 202), (19, 202), (20, 401)):
        body = json.dumps({"events": [{"action": "added", "resource": {"gid": number}}]}).encode()
        signature = digest(f"secret-of-project-{number}", body)
        sent = SignedWebhook("asana", body, {"x-hook-signature": signature})
        assert other.send(sent).status_code == status


def test_an_invalid_provisioned_secret_is_not_stored(database_url: str, serve: Serve) -> None:
    inbox = Inbox(database_url)
    inbox.source("notion", verify_token=VERIFY_TOKEN)
    service = serve(inbox)
    token = {"verification_token": "secret-with-line-break\n"}
    response = service.http.post(f"/webhooks/notion?verify_token={VERIFY_TOKEN}", json=token)
    assert (response.status_code, response.json()["error"]) == (400, "unusable_secret")
    assert service.raw_db.count("onceward.provisioned_secrets") == 0


# Proxies, URLs and the dedupe window.


@pytest.mark.every_transport
def test_the_query_always_comes_from_the_request(sqlite_url: str, serve: Serve) -> None:
    """A token in the configured URL must not authenticate a request without it."""
    inbox = Inbox(sqlite_url)
    url = "https://inbox.example/webhooks/"
    inbox.source("azure-event-grid", secrets=["a-code-1234"], url=f"{url}?code=a-code-1234")
    inbox.source("asana", verify_token=VERIFY_TOKEN, url=f"{url}?verify_token={VERIFY_TOKEN}")
    service = serve(inbox)
    event = [{"id": "1", "eventType": "made"}]
    assert service.http.post("/webhooks/azure-event-grid", json=event).status_code == 401
    right = "/webhooks/azure-event-grid?code=a-code-1234"
    assert service.http.post(right, json=event).status_code == 202
    headers = {"x-hook-secret": "attacker-secret"}
    assert service.http.post("/webhooks/asana", headers=headers).status_code == 403


@pytest.mark.every_transport
def test_the_signed_url_does_not_come_from_the_request(sqlite_url: str, serve: Serve) -> None:
    inbox = Inbox(sqlite_url, trusted_proxies=["127.0.0.0/8"])
    inbox.source(
        "square", secrets=["the-signature-key"], url="https://shop.example/webhooks/square"
    )
    service = serve(inbox)
    for number, (host, status) in enumerate([("shop.example", 202), ("staging.example", 401)]):
        body = b'{"event_id":"%d","type":"payment.made"}' % number
        url = f"https://{host}/webhooks/square"
        signed = onceward.sign("square", secret="the-signature-key", body=body, url=url)
        forwarded = {"host": host, "x-forwarded-proto": "https", "x-forwarded-host": host}
        response = service.http.post(
            "/webhooks/square?a=1", content=signed.body, headers={**signed.headers, **forwarded}
        )
        assert response.status_code == status


def test_a_dedupe_window_shorter_than_a_provider_resends_is_rejected(sqlite_url: str) -> None:
    inbox = make(sqlite_url, STRIPE_SECRET)
    assert inbox.service({"dedupe_window_days": 30}).settings.dedupe_window_days == 30
    with pytest.raises(ConfigurationError) as refused:
        inbox.service({"dedupe_window_days": 29})
    (fault,) = refused.value.faults
    assert "source 'stripe' can resend an event for 30 days" in fault
    assert "Set dedupe_window_days to 30 or more" in fault
