"""What becomes of requests that did not verify, of conflicts, and of secrets handed over."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
    Signed,
    digest,
    github_webhook,
    stripe_webhook,
)

ACT = {"actor": "ann", "reason": "the secret was a line short"}
VERIFY_TOKEN = "a-token-of-our-own"


def make(url: str, secret: str, **options: Any) -> Inbox:
    inbox = Inbox(url)
    inbox.source("stripe", secrets=[secret], **options)

    @inbox.on("invoice.paid")
    async def credit(event: Event[Any]) -> None:
        assert event.payload["id"]

    return inbox


def act(service: RunningInbox, path: str) -> httpx.Response:
    return service.http.post(f"/admin/{path}", json=ACT)


def rejections(service: RunningInbox, count: int = 1) -> list[Item]:
    return eventually(
        lambda: found if len(found := service.items("rejections")) >= count else [],
        "the rejections are listed",
    )


# Rejections.


def test_a_refusal_is_told_to_the_operator_and_not_to_the_sender(service: RunningInbox) -> None:
    answer = service.signed(stripe_webhook(secret="whsec_of_somebody_else"))
    assert answer.status_code == 401
    assert answer.json()["message"] == "The signature was not accepted."
    (listed,) = rejections(service)
    assert (listed["source"], listed["cause"]) == ("stripe", "mismatch")
    assert listed["check"] == "no signature matched any of 2 secrets"
    assert (listed["kept"], listed["count"]) == (False, 1)
    assert service.rows() == (0, 0, 0)
    answer = act(service, f"rejections/{listed['id']}/verify")
    assert answer.status_code == 409
    assert "nothing is kept; see the source's keep_rejected" in answer.json()["message"]


def test_a_flood_of_them_is_counted_and_costs_the_ledger_little(service: RunningInbox) -> None:
    for number in range(200):
        headers = {"stripe-signature": f"t={number},v1=00"}
        assert service.http.post("/webhooks/stripe", headers=headers).status_code == 401

    def counted() -> int:
        counts = service.http.get("/admin/rejections").json()["counts"]
        return sum(count["count"] for count in counts if count["cause"] == "timestamp")

    eventually(lambda: counted() == 200, "all are counted")
    assert len(service.items("rejections", limit="1000")) < 150


def test_a_kept_request_is_received_when_the_secret_is_right(
    database_url: str, serve: Serve
) -> None:
    wrong = serve(make(database_url, STRIPE_OLD_SECRET, keep_rejected=True))
    sent = stripe_webhook("evt_7", secret=STRIPE_SECRET)
    assert wrong.signed(sent).status_code == 401
    (listed,) = rejections(wrong)
    assert listed["kept"]
    answer = act(wrong, f"rejections/{listed['id']}/verify")
    assert (answer.status_code, answer.json()["error"]) == (409, "not_in_state")
    assert "It does not verify: no signature matched" in answer.json()["message"]
    wrong.close()

    right = serve(make(database_url, STRIPE_SECRET, keep_rejected=True))
    answer = act(right, f"rejections/{listed['id']}/verify")
    assert answer.status_code == 200, answer.text
    (event,) = answer.json()["events"]
    assert event["outcome"] == "recorded"
    assert right.settled_job("evt_7")["status"] == "done"
    assert right.payload("evt_7")[0] == sent.body
    (listed,) = rejections(right)
    assert (listed["received_as"], listed["kept"]) == (event["id"], False)
    (entry,) = right.items("audit")
    assert (entry["action"], entry["actor"]) == ("verify_again", "ann")
    assert act(right, f"rejections/{listed['id']}/verify").status_code == 409
    assert right.signed(sent).json()["duplicate"]


def test_what_is_kept_is_judged_at_the_time_when_it_came(database_url: str, serve: Serve) -> None:
    service = serve(make(database_url, STRIPE_SECRET, keep_rejected=True))
    service.signed(stripe_webhook("evt_old", now=int(time.time()) - 5000))
    (listed,) = rejections(service)
    assert listed["cause"] == "timestamp"
    assert "s off" in act(service, f"rejections/{listed['id']}/verify").json()["message"]
    earlier = "5000000000" if service.raw_db.is_sqlite else "interval '5000 seconds'"
    service.raw_db.rows(
        f"UPDATE onceward.rejections SET received_at = received_at - {earlier}"  # noqa: S608 - our own
    )
    assert act(service, f"rejections/{listed['id']}/verify").status_code == 200


@pytest.mark.parametrize("path", ["rejections/999/verify", "deliveries/999/accept"])
def test_what_is_not_there_is_404_and_needs_an_actor(service: RunningInbox, path: str) -> None:
    assert act(service, path).status_code == 404
    assert service.http.post(f"/admin/{path}", json={"actor": "ann"}).status_code == 422


def test_a_question_that_is_answered_with_no_leaves_a_line(
    service: RunningInbox, caplog: pytest.LogCaptureFixture
) -> None:
    asked = "hub.mode=subscribe&hub.verify_token=wrong&hub.challenge=1"
    assert service.http.get(f"/webhooks/meta?{asked}").status_code == 403
    service.http.post("/webhooks/stripe", content=b"{}")
    service.http.post("/webhooks/github", content=b"{}")
    told = [record.getMessage() for record in caplog.records if record.name == "onceward.http"]
    assert [line.partition(":")[0] for line in told] == [
        "/webhooks/meta",
        "/webhooks/stripe",
        "/webhooks/github",
    ]
    assert "see the source's verify_token" in told[0]


# Conflicts.


def test_a_conflict_is_accepted_as_an_event_of_its_own(service: RunningInbox) -> None:
    assert service.signed(stripe_webhook("evt_1")).status_code == 202
    assert service.settled_job("evt_1")["status"] == "done"
    other = stripe_webhook("evt_1", data={"object": {"id": "in_2"}}, type="order.broken")
    assert service.signed(other).json()["conflict"]
    (conflict,) = service.items("deliveries", status="conflict")
    answer = act(service, f"deliveries/{conflict['id']}/accept")
    assert answer.status_code == 200, answer.text
    (event, first) = service.items("events")
    assert event["id"] == answer.json()["events"][0]["id"]
    assert event["event_id"].startswith("evt_1#")
    # It is about what its own body says.
    assert (event["event_type"], event["related_reference"]) == ("order.broken", "in_2")
    assert first["conflicts"] == 1
    assert service.settled_job(event["event_id"])["failure_type"] == "permanent"
    assert act(service, f"deliveries/{conflict['id']}/accept").status_code == 409
    (conflict,) = service.items("deliveries", status="conflict")
    assert conflict["accepted_as"] == event["id"]
    assert service.items("audit")[0]["subject"] == f"delivery:{conflict['id']}"


def test_a_conflict_of_ones_own_application_is_about_what_its_envelope_says(
    service: RunningInbox,
) -> None:
    service.post("evt_1", "order.paid", reference="order_1")
    service.post("evt_1", "order.broken", reference="order_2")
    (conflict,) = service.items("deliveries", status="conflict")
    assert act(service, f"deliveries/{conflict['id']}/accept").status_code == 200
    event = service.items("events")[0]
    assert (event["event_type"], event["related_reference"]) == ("order.broken", "order_2")


def test_what_stands_in_a_header_is_as_it_was(service: RunningInbox) -> None:
    service.signed(github_webhook("g1", b'{"ref":"a"}'))
    service.signed(github_webhook("g1", b'{"ref":"b","action":"made"}'))
    (conflict,) = service.items("deliveries", status="conflict")
    assert act(service, f"deliveries/{conflict['id']}/accept").status_code == 200
    assert service.items("events")[0]["event_type"] == "push"


def test_a_conflict_of_a_source_that_is_gone_says_so(database_url: str, serve: Serve) -> None:
    service = serve(make(database_url, STRIPE_SECRET))
    for reference in ("in_1", "in_2"):
        service.signed(stripe_webhook("evt_1", data={"object": {"id": reference}}))
    (conflict,) = service.items("deliveries", status="conflict")
    service.close()
    without = serve(Inbox(database_url))
    answer = act(without, f"deliveries/{conflict['id']}/accept")
    assert (answer.status_code, answer.json()["error"]) == (409, "not_in_state")


def test_of_many_who_act_at_once_one_does_it(service: RunningInbox) -> None:
    service.post("evt_1")
    service.post("evt_1", payload="another")
    (conflict,) = service.items("deliveries", status="conflict")
    with ThreadPoolExecutor(8) as people:
        path = f"deliveries/{conflict['id']}/accept"
        statuses = list(people.map(lambda _: act(service, path).status_code, range(8)))
    assert sorted(statuses) == [200] + [409] * 7
    assert len(service.items("audit")) == 1


def test_only_a_conflict_can_be_accepted(service: RunningInbox) -> None:
    for _ in range(2):
        service.post("evt_1")
    (duplicate, _) = service.items("deliveries")
    answer = act(service, f"deliveries/{duplicate['id']}/accept")
    assert answer.status_code == 409
    assert "is a duplicate; only a conflict" in answer.json()["message"]


def test_what_a_sender_changes_from_delivery_to_delivery_makes_no_conflict(
    service: RunningInbox,
) -> None:
    for waiting in (2, 1, 0):
        service.signed(stripe_webhook("evt_1", pending_webhooks=waiting))
    (event,) = service.items("events")
    assert (event["deliveries"], event["conflicts"]) == (3, 0)
    service.signed(stripe_webhook("evt_1", pending_webhooks=0, livemode=True))
    assert service.items("events")[0]["conflicts"] == 1


# Secrets that are handed over.


def test_asana_hands_over_its_secret_to_every_process(postgres_url: str, serve: Serve) -> None:
    def make_one() -> Inbox:
        inbox = Inbox(postgres_url)
        inbox.source("asana", verify_token=VERIFY_TOKEN)
        return inbox

    one, other = serve(make_one()), serve(make_one())
    body = json.dumps({"events": [{"action": "added", "resource": {"gid": "1"}}]}).encode()
    sent = Signed("asana", body, {"x-hook-signature": digest("handed-over-secret", body)})
    assert one.signed(sent).status_code == 401
    handed = {"x-hook-secret": "handed-over-secret"}
    assert one.http.post("/webhooks/asana", headers=handed).status_code == 403
    answer = one.http.post(f"/webhooks/asana?verify_token={VERIFY_TOKEN}", headers=handed)
    assert (answer.status_code, answer.headers["x-hook-secret"]) == (200, "handed-over-secret")
    assert one.signed(sent).status_code == 202
    eventually(lambda: other.signed(sent).status_code == 202, "the other process knows it too")
    third = serve(make_one())
    assert third.signed(sent).json()["duplicate"]


def test_a_secret_that_cannot_be_one_is_not_kept(database_url: str, serve: Serve) -> None:
    inbox = Inbox(database_url)
    inbox.source("notion", verify_token=VERIFY_TOKEN)
    service = serve(inbox)
    token = {"verification_token": "a-secret-with-a-break\n"}
    answer = service.http.post(f"/webhooks/notion?verify_token={VERIFY_TOKEN}", json=token)
    assert (answer.status_code, answer.json()["error"]) == (400, "unusable_secret")
    assert service.raw_db.count("onceward.provisioned_secrets") == 0


# Behind a proxy, and what is forgotten.


def test_the_query_is_always_the_requests_own(sqlite_url: str, serve: Serve) -> None:
    """What is configured as the URL may hold the token: it must not stand in for it."""
    inbox = Inbox(sqlite_url)
    url = "https://inbox.example/webhooks/"
    inbox.source("azure-event-grid", secrets=["a-code-1234"], url=f"{url}?code=a-code-1234")
    inbox.source("asana", verify_token=VERIFY_TOKEN, url=f"{url}?verify_token={VERIFY_TOKEN}")
    service = serve(inbox)
    event = [{"id": "1", "eventType": "made"}]
    assert service.http.post("/webhooks/azure-event-grid", json=event).status_code == 401
    right = "/webhooks/azure-event-grid?code=a-code-1234"
    assert service.http.post(right, json=event).status_code == 202
    handed = {"x-hook-secret": "of-an-attacker"}
    assert service.http.post("/webhooks/asana", headers=handed).status_code == 403


@pytest.mark.parametrize(("proxies", "status"), [(["127.0.0.0/8"], 202), ([], 401)])
def test_the_url_that_is_signed_is_the_one_that_a_trusted_proxy_tells(
    sqlite_url: str, serve: Serve, proxies: list[str], status: int
) -> None:
    inbox = Inbox(sqlite_url, trusted_proxies=proxies)
    inbox.source("square", secrets=["the-signature-key"])
    service = serve(inbox)
    signed = onceward.sign(
        "square",
        secret="the-signature-key",
        body=b'{"event_id":"1","type":"payment.made"}',
        url="https://shop.example/webhooks/square",
    )
    forwarded = {"x-forwarded-proto": "https", "x-forwarded-host": "shop.example"}
    answer = service.http.post(
        "/webhooks/square", content=signed.body, headers={**signed.headers, **forwarded}
    )
    assert answer.status_code == status


def test_a_horizon_that_is_too_near_is_refused_with_the_reason(sqlite_url: str) -> None:
    inbox = make(sqlite_url, STRIPE_SECRET)
    assert inbox.service({"dedupe_window_days": 30}).settings.dedupe_window_days == 30
    with pytest.raises(ConfigurationError) as refused:
        inbox.service({"dedupe_window_days": 29})
    (fault,) = refused.value.faults
    assert "source 'stripe' can resend an event for 30 days" in fault
    assert "Set dedupe_window_days to 30 or more" in fault
