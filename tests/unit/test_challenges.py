"""What senders ask before they send is answered as they insist."""

import hashlib
import hmac
import json
from typing import Any

import pytest

from onceward.errors import SignatureRejected
from onceward.sources.challenge import Reply
from onceward.sources.configure import make_source
from onceward.sources.request import Headers, Request
from onceward.sources.source import Source

SECRET = "a-secret-of-the-account"
TOKEN = "a-token-for-the-subscription"
NOW = 1_760_000_000
URL = "https://shop.example/webhooks/source"


def source(preset: str, **options: Any) -> Source:
    return make_source("source", preset=preset, secrets=[SECRET], **options)


def digest(content: str, secret: str = SECRET) -> str:
    return hmac.digest(secret.encode(), content.encode(), hashlib.sha256).hex()


def request(
    body: object = None,
    headers: dict[str, str] | None = None,
    query: str = "",
    method: str = "POST",
) -> Request:
    pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    content = b"" if body is None else json.dumps(body).encode()
    return Request(Headers(pairs), content, method=method, url=f"{URL}?{query}")


def v0(body: object, signature_header: str, time_header: str) -> dict[str, str]:
    content = f"v0:{NOW}:{json.dumps(body)}"
    return {signature_header: f"v0={digest(content)}", time_header: str(NOW)}


def slack(body: object) -> Request:
    return request(body, v0(body, "X-Slack-Signature", "X-Slack-Request-Timestamp"))


def zoom(body: object) -> Request:
    return request(body, v0(body, "x-zm-signature", "x-zm-request-timestamp"))


def admitted(preset: str, sent: Request, **options: Any) -> Any:
    return source(preset, **options).verify(sent, NOW)


def test_slack_has_its_challenge_back() -> None:
    asked = {"type": "url_verification", "challenge": "3eZbrw1a"}
    assert admitted("slack", slack(asked)) == Reply(body=b"3eZbrw1a")
    told = {"type": "event_callback", "event_id": "Ev1", "event": {"type": "message"}}
    ((identity, _),) = admitted("slack", slack(told))
    assert (identity.event_id, identity.type) == ("Ev1", "message")


def test_nothing_signed_is_answered_to_who_cannot_sign() -> None:
    asked = {"type": "url_verification", "challenge": "3eZbrw1a"}
    with pytest.raises(SignatureRejected):
        admitted("slack", request(asked))


@pytest.mark.parametrize("challenge", [None, "", 7, ["a"], "x" * 5000])
def test_a_question_that_is_none_is_an_event_like_others(challenge: object) -> None:
    asked = {"type": "url_verification", "challenge": challenge, "event_id": "Ev1"}
    ((identity, _),) = admitted("slack", slack(asked))
    assert identity.event_id == "Ev1"


def test_zoom_has_its_token_back_with_the_digest_of_it() -> None:
    asked = {"event": "endpoint.url_validation", "payload": {"plainToken": "q9ib"}}
    reply = admitted("zoom", zoom(asked))
    assert json.loads(reply.body) == {"plainToken": "q9ib", "encryptedToken": digest("q9ib")}


def test_twitch_has_its_challenge_back() -> None:
    body = {"challenge": "pogchamp", "subscription": {"id": "s1"}}
    at = "2025-10-09T08:53:20.123456789Z"
    headers = {
        "Twitch-Eventsub-Message-Id": "m1",
        "Twitch-Eventsub-Message-Timestamp": at,
        "Twitch-Eventsub-Message-Type": "webhook_callback_verification",
        "Twitch-Eventsub-Message-Signature": f"sha256={digest(f'm1{at}{json.dumps(body)}')}",
    }
    assert admitted("twitch", request(body, headers)).body == b"pogchamp"


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        (f"hub.mode=subscribe&hub.verify_token={TOKEN}&hub.challenge=1158", 200, b"1158"),
        (f"hub.mode=subscribe&hub.verify_token={TOKEN}x&hub.challenge=1158", 403, b""),
        (f"hub.mode=unsubscribe&hub.verify_token={TOKEN}&hub.challenge=1158", 403, b""),
        (f"hub.mode=subscribe&hub.verify_token={TOKEN}", 403, b""),
        ("", 403, b""),
    ],
)
def test_meta_is_told_its_challenge_for_the_token(query: str, status: int, body: bytes) -> None:
    asked = request(query=query, method="GET")
    reply = source("meta", verify_token=TOKEN).answer_challenge(asked)
    assert reply is not None
    assert (reply.status, reply.body) == (status, body)
    assert source("meta").answer_challenge(asked) == Reply(403), "without a token nobody is let in"


def test_graph_has_its_validation_token_back_decoded() -> None:
    asked = request(query="validationToken=Validation%3A%20a%2Bb")
    assert admitted("microsoft-graph", asked) == Reply(body=b"Validation: a+b")
    with pytest.raises(SignatureRejected):
        admitted("microsoft-graph", request({"value": [{"clientState": "wrong-state"}]}))


def test_event_grid_has_its_code_back() -> None:
    body = [{"id": "1", "data": {"validationCode": "512d38b6"}}]
    headers = {"aeg-event-type": "SubscriptionValidation"}
    asked = request(body, headers, f"code={SECRET}")
    assert json.loads(admitted("azure-event-grid", asked).body) == {
        "validationResponse": "512d38b6"
    }
    with pytest.raises(SignatureRejected):
        admitted("azure-event-grid", request(body, headers, "code=another"))
    odds: list[Any] = [[], {}, [7], [{}], [{"data": 7}], [{"data": {"validationCode": 7}}]]
    for odd in odds:
        assert isinstance(
            admitted("azure-event-grid", request(odd, headers, f"code={SECRET}")), list
        )


@pytest.mark.parametrize("preset", ["cloudevents", "azure-event-grid"])
def test_who_asks_whether_to_send_cloudevents_may(preset: str) -> None:
    headers = {"WebHook-Request-Origin": "eventemitter.example.com", "WebHook-Request-Rate": "120"}
    reply = source(preset).answer_challenge(request(headers=headers, method="OPTIONS"))
    assert reply is not None
    assert dict(reply.headers) == {
        "Allow": "POST, OPTIONS",
        "WebHook-Allowed-Origin": "eventemitter.example.com",
        "WebHook-Allowed-Rate": "*",
    }


def test_x_has_the_digest_of_its_token() -> None:
    reply = source("x-twitter").answer_challenge(request(query="crc_token=abc", method="GET"))
    assert reply is not None
    assert json.loads(reply.body)["response_token"].startswith("sha256=")


@pytest.mark.parametrize("token", ["", "%7B%22id%22%3A1%7D", "a%20b", "a%22", "x" * 201])
def test_nobody_has_us_sign_what_could_be_an_event_of_x(token: str) -> None:
    assert (
        source("x-twitter").answer_challenge(request(query=f"crc_token={token}", method="GET"))
        is None
    )


def test_a_source_without_a_secret_signs_nothing() -> None:
    asked = request(query="crc_token=abc", method="GET")
    assert make_source("x", preset="x-twitter", unsigned=True).answer_challenge(asked) is None
    told = request({"event": "endpoint.url_validation", "payload": {"plainToken": "q9ib"}})
    assert isinstance(make_source("z", preset="zoom", unsigned=True).verify(told, NOW), list)


@pytest.mark.parametrize("preset", ["trello", "mandrill", "intercom"])
def test_a_head_says_that_somebody_is_here_and_a_post_has_to_be_signed(preset: str) -> None:
    assert source(preset).answer_challenge(request(method="HEAD")) == Reply()
    with pytest.raises(SignatureRejected):
        admitted(preset, request({}))


# Secrets that are handed over.

OWN_TOKEN = "a-token-of-our-own"


@pytest.mark.parametrize(
    ("preset", "sent"),
    [
        ("asana", {"headers": {"X-Hook-Secret": "handed-over-1"}}),
        ("notion", {"body": {"verification_token": "handed-over-1"}}),
    ],
)
def test_a_secret_is_taken_only_where_the_url_has_our_token(
    preset: str, sent: dict[str, Any]
) -> None:
    learner = make_source("source", preset=preset, verify_token=OWN_TOKEN)
    reply = learner.verify(request(**sent, query=f"verify_token={OWN_TOKEN}"), NOW)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.provisioned_secret) == (200, b"handed-over-1")
    assert dict(reply.headers) == ({"X-Hook-Secret": "handed-over-1"} if preset == "asana" else {})
    without = make_source("source", preset=preset, secrets=[SECRET])
    for asked, query in (
        (learner, ""),
        (learner, "verify_token="),
        (learner, "verify_token=another-token-123"),
        (without, "verify_token="),
    ):
        try:
            answer = asked.verify(request(**sent, query=query), NOW)
        except SignatureRejected:
            answer = Reply(403)
        assert answer == Reply(403)


@pytest.mark.parametrize("secret", ["short", "x" * 257])
def test_a_secret_that_is_none_is_not_taken(secret: str) -> None:
    learner = make_source("source", preset="asana", verify_token=OWN_TOKEN)
    sent = request(headers={"X-Hook-Secret": secret}, query=f"verify_token={OWN_TOKEN}")
    assert learner.verify(sent, NOW) == Reply(403)


def test_what_was_handed_over_verifies_from_then_on() -> None:
    learner = make_source("source", preset="asana", verify_token=OWN_TOKEN)
    events = {"events": [{"action": "added", "resource": {"gid": "1", "resource_type": "task"}}]}
    signature = digest(json.dumps(events), "handed-over-1")
    sent = request(events, {"X-Hook-Signature": signature})
    with pytest.raises(SignatureRejected):
        learner.verify(sent, NOW)
    with_secrets = learner.with_secrets([b"handed-over-1"])
    admitted = with_secrets.verify(sent, NOW)
    assert isinstance(admitted, list)
    assert len(admitted) == 1
    again = with_secrets.with_secrets(
        [b"handed-over-1", b"-----BEGIN nothing", b"ends in a break\n"]
    )
    assert again.secrets == with_secrets.secrets
    assert len(again.keys) == len(with_secrets.keys)


def test_a_signed_request_hands_over_nothing() -> None:
    learner = make_source("source", preset="notion", secrets=[SECRET], verify_token=OWN_TOKEN)
    body = {"verification_token": "handed-over-1"}
    sent = request(body, {"X-Notion-Signature": "sha256=00"}, f"verify_token={OWN_TOKEN}")
    with pytest.raises(SignatureRejected):
        learner.verify(sent, NOW)


# Braintree.

BRAINTREE = "public_key_1:private_key_1"


def test_braintree_has_its_challenge_signed_and_nothing_else() -> None:
    asked = make_source("source", preset="braintree", secrets=[BRAINTREE])
    challenge = "20f9f8ed05f77439fe955c977e4c8a53"
    key = hashlib.sha1(b"private_key_1").digest()  # noqa: S324 - as the sender does
    expected = hmac.digest(key, challenge.encode(), hashlib.sha1).hex()
    reply = asked.answer_challenge(request(method="GET", query=f"bt_challenge={challenge}"))
    assert reply == Reply(body=f"public_key_1|{expected}".encode())
    for text in ("", "PHhtbD4=", challenge.upper(), challenge * 2):
        assert asked.answer_challenge(request(method="GET", query=f"bt_challenge={text}")) is None
    # What anyone can have signed is not a payload.
    body = f"bt_payload={challenge}&bt_signature=public_key_1|{expected}".encode()
    forged = Request(Headers([]), body, url=URL)
    with pytest.raises(SignatureRejected, match="not accepted") as refused:
        asked.verify(forged, NOW)
    assert refused.value.check == "the payload is a challenge, not an event"
