"""Challenges are answered as each provider requires."""

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


def admit(preset: str, received: Request) -> Any:
    return source(preset).verify(received, NOW)


def test_slack_receives_its_challenge() -> None:
    challenge = {"type": "url_verification", "challenge": "3eZbrw1a"}
    assert admit("slack", slack(challenge)) == Reply(body=b"3eZbrw1a")
    event = {"type": "event_callback", "event_id": "Ev1", "event": {"type": "message"}}
    ((identity, *_),) = admit("slack", slack(event))
    assert (identity.event_id, identity.type) == ("Ev1", "message")


def test_a_signed_challenge_without_a_signature_is_rejected() -> None:
    challenge = {"type": "url_verification", "challenge": "3eZbrw1a"}
    with pytest.raises(SignatureRejected):
        admit("slack", request(challenge))


def test_an_invalid_challenge_is_an_event(subtests: pytest.Subtests) -> None:
    for challenge in (None, "", 7, ["a"], "x" * 5000):
        with subtests.test(challenge=challenge):
            body = {"type": "url_verification", "challenge": challenge, "event_id": "Ev1"}
            ((identity, *_),) = admit("slack", slack(body))
            assert identity.event_id == "Ev1"


def test_zoom_receives_its_token_and_the_digest() -> None:
    challenge = {"event": "endpoint.url_validation", "payload": {"plainToken": "q9ib"}}
    reply = admit("zoom", zoom(challenge))
    assert json.loads(reply.body) == {"plainToken": "q9ib", "encryptedToken": digest("q9ib")}


def twitch(body: dict[str, Any], kind: str) -> Request:
    at = "2025-10-09T08:53:20.123456789Z"
    headers = {
        "Twitch-Eventsub-Message-Id": "m1",
        "Twitch-Eventsub-Message-Timestamp": at,
        "Twitch-Eventsub-Message-Type": kind,
        "Twitch-Eventsub-Message-Signature": f"sha256={digest(f'm1{at}{json.dumps(body)}')}",
        "Twitch-Eventsub-Subscription-Type": "channel.follow",
    }
    return request(body, headers)


@pytest.mark.parametrize("kind", ["webhook_callback_verification", "notification", "revocation"])
def test_twitch_receives_its_challenge_with_any_unsigned_message_type(kind: str) -> None:
    body = {"challenge": "pogchamp", "subscription": {"id": "s1"}}
    assert admit("twitch", twitch(body, kind)).body == b"pogchamp"


@pytest.mark.parametrize("kind", ["webhook_callback_verification", "notification", "revocation"])
def test_a_revocation_of_twitch_is_no_event_of_the_subscription(kind: str) -> None:
    status = {"type": "channel.follow", "status": "authorization_revoked"}
    ((revoked, *_),) = admit("twitch", twitch({"subscription": status}, kind))
    assert revoked.type == "channel.follow.authorization_revoked"
    enabled = {"subscription": status | {"status": "enabled"}, "event": {}}
    ((identity, *_),) = admit("twitch", twitch(enabled, kind))
    assert identity.type == "channel.follow.enabled"


def test_meta_receives_its_challenge_for_the_token(subtests: pytest.Subtests) -> None:
    for query, status, body in [
        (f"hub.mode=subscribe&hub.verify_token={TOKEN}&hub.challenge=1158", 200, b"1158"),
        (f"hub.mode=subscribe&hub.verify_token={TOKEN}x&hub.challenge=1158", 403, b""),
        (f"hub.mode=unsubscribe&hub.verify_token={TOKEN}&hub.challenge=1158", 403, b""),
        (f"hub.mode=subscribe&hub.verify_token={TOKEN}", 403, b""),
        ("", 403, b""),
    ]:
        with subtests.test(query=query):
            challenge = request(query=query, method="GET")
            reply = source("meta", verify_token=TOKEN).answer_challenge(challenge)
            assert reply is not None
            assert (reply.status, reply.body) == (status, body)
            assert source("meta").answer_challenge(challenge) == Reply(403), (
                "a source without a token"
            )


def test_graph_receives_its_validation_token_decoded() -> None:
    challenge = request(query="validationToken=Validation%3A%20a%2Bb")
    assert admit("microsoft-graph", challenge) == Reply(body=b"Validation: a+b")
    with pytest.raises(SignatureRejected):
        admit("microsoft-graph", request({"value": [{"clientState": "wrong-state"}]}))


def test_event_grid_receives_its_code() -> None:
    body = [{"id": "1", "data": {"validationCode": "512d38b6"}}]
    headers = {"aeg-event-type": "SubscriptionValidation"}
    reply = admit("azure-event-grid", request(body, headers, f"code={SECRET}"))
    assert json.loads(reply.body) == {"validationResponse": "512d38b6"}
    with pytest.raises(SignatureRejected):
        admit("azure-event-grid", request(body, headers, "code=another"))
    others: list[Any] = [[], {}, [7], [{}], [{"data": 7}], [{"data": {"validationCode": 7}}]]
    for other in others:
        received = request(other, headers, f"code={SECRET}")
        assert isinstance(admit("azure-event-grid", received), list)


@pytest.mark.parametrize("preset", ["cloudevents", "azure-event-grid"])
def test_every_origin_may_send_cloudevents(preset: str) -> None:
    headers = {"WebHook-Request-Origin": "eventemitter.example.com", "WebHook-Request-Rate": "120"}
    reply = source(preset).answer_challenge(request(headers=headers, method="OPTIONS"))
    assert reply is not None
    assert dict(reply.headers) == {
        "Allow": "POST, OPTIONS",
        "WebHook-Allowed-Origin": "eventemitter.example.com",
        "WebHook-Allowed-Rate": "*",
    }


def test_x_receives_the_digest_of_its_token() -> None:
    reply = source("x-twitter").answer_challenge(request(query="crc_token=abc", method="GET"))
    assert reply is not None
    assert json.loads(reply.body)["response_token"].startswith("sha256=")


def test_a_token_that_could_be_an_event_of_x_is_not_signed(subtests: pytest.Subtests) -> None:
    for token in ("", "%7B%22id%22%3A1%7D", "a%20b", "a%22", "x" * 201):
        with subtests.test(token=token):
            assert (
                source("x-twitter").answer_challenge(
                    request(query=f"crc_token={token}", method="GET")
                )
                is None
            )


def test_a_source_without_a_secret_signs_no_challenge() -> None:
    crc = request(query="crc_token=abc", method="GET")
    assert make_source("x", preset="x-twitter", unsigned=True).answer_challenge(crc) is None
    validation = request({"event": "endpoint.url_validation", "payload": {"plainToken": "q9ib"}})
    assert isinstance(make_source("z", preset="zoom", unsigned=True).verify(validation, NOW), list)


@pytest.mark.parametrize("preset", ["trello", "mandrill", "intercom"])
def test_a_head_request_succeeds_and_a_post_must_be_signed(preset: str) -> None:
    probed = source(preset, url=URL)
    assert probed.answer_challenge(request(method="HEAD")) == Reply()
    with pytest.raises(SignatureRejected):
        probed.verify(request({}), NOW)


# Provisioned secrets.

VERIFY_TOKEN = "a-token-of-our-own"


@pytest.mark.parametrize(
    ("preset", "sent"),
    [
        ("asana", {"headers": {"X-Hook-Secret": "provisioned-1"}}),
        ("notion", {"body": {"verification_token": "provisioned-1"}}),
    ],
)
def test_a_secret_is_provisioned_only_with_the_verify_token(
    preset: str, sent: dict[str, Any]
) -> None:
    with_token = make_source("source", preset=preset, verify_token=VERIFY_TOKEN)
    reply = with_token.verify(request(**sent, query=f"verify_token={VERIFY_TOKEN}"), NOW)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.provisioned_secret) == (200, b"provisioned-1")
    assert dict(reply.headers) == ({"X-Hook-Secret": "provisioned-1"} if preset == "asana" else {})
    for query in ("", "verify_token=", "verify_token=another-token-123"):
        assert with_token.verify(request(**sent, query=query), NOW) == Reply(403)


def test_a_source_without_a_verify_token_is_provisioned_with_nothing() -> None:
    for preset, sent in (
        ("asana", request(headers={"X-Hook-Secret": "provisioned-1"}, query="verify_token=")),
        ("notion", request({"verification_token": "provisioned-1"}, query="verify_token=")),
    ):
        try:
            result = source(preset).verify(sent, NOW)
        except SignatureRejected:
            continue
        assert result == Reply(403)


@pytest.mark.parametrize("secret", ["short", "x" * 257])
def test_a_secret_that_is_too_short_or_too_long_is_rejected(secret: str) -> None:
    with_token = make_source("source", preset="asana", verify_token=VERIFY_TOKEN)
    sent = request(headers={"X-Hook-Secret": secret}, query=f"verify_token={VERIFY_TOKEN}")
    assert with_token.verify(sent, NOW) == Reply(403)


def test_a_provisioned_secret_verifies_requests() -> None:
    with_token = make_source("source", preset="asana", verify_token=VERIFY_TOKEN)
    events = {"events": [{"action": "added", "resource": {"gid": "1", "resource_type": "task"}}]}
    signature = digest(json.dumps(events), "provisioned-1")
    sent = request(events, {"X-Hook-Signature": signature})
    with pytest.raises(SignatureRejected):
        with_token.verify(sent, NOW)
    with_secrets = with_token.with_secrets([b"provisioned-1"])
    admitted = with_secrets.verify(sent, NOW)
    assert isinstance(admitted, list)
    assert len(admitted) == 1
    again = with_secrets.with_secrets(
        [b"provisioned-1", b"-----BEGIN nothing", b"ends in a break\n"]
    )
    assert again.secrets == with_secrets.secrets
    assert len(again.keys) == len(with_secrets.keys)


def test_a_signed_request_provisions_no_secret() -> None:
    with_token = make_source("source", preset="notion", secrets=[SECRET], verify_token=VERIFY_TOKEN)
    body = {"verification_token": "provisioned-1"}
    sent = request(body, {"X-Notion-Signature": "sha256=00"}, f"verify_token={VERIFY_TOKEN}")
    with pytest.raises(SignatureRejected):
        with_token.verify(sent, NOW)


# Braintree.

BRAINTREE = "public_key_1:private_key_1"


def test_only_a_valid_braintree_challenge_is_signed() -> None:
    braintree = make_source("source", preset="braintree", secrets=[BRAINTREE])
    challenge = "20f9f8ed05f77439fe955c977e4c8a53"
    key = hashlib.sha1(b"private_key_1").digest()  # noqa: S324 - Braintree's choice
    expected = hmac.digest(key, challenge.encode(), hashlib.sha1).hex()
    reply = braintree.answer_challenge(request(method="GET", query=f"bt_challenge={challenge}"))
    assert reply == Reply(body=f"public_key_1|{expected}".encode())
    for text in ("", "PHhtbD4=", challenge.upper(), challenge * 2):
        assert (
            braintree.answer_challenge(request(method="GET", query=f"bt_challenge={text}")) is None
        )
    # Anyone can have a challenge signed, so it must not pass as a payload.
    body = f"bt_payload={challenge}&bt_signature=public_key_1|{expected}".encode()
    forged = Request(Headers([]), body, url=URL)
    with pytest.raises(SignatureRejected, match="not accepted") as rejection:
        braintree.verify(forged, NOW)
    assert rejection.value.check.startswith("form:bt_payload is not XML in base64")
