"""What a provider signs for another purpose, with the secret of its webhooks, is no event."""

import base64
import hashlib
import hmac
import json
from urllib.parse import urlencode

import pytest

import onceward
from onceward.errors import SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.diagnose import diagnose
from onceward.sources.request import Headers, Request
from tests.keys import HEX

SECRET = "a-secret-of-the-account"
NOW = 1_760_000_000


def digest(content: str, key: bytes = SECRET.encode()) -> bytes:
    return hmac.digest(key, content.encode(), hashlib.sha256)


def rejection(preset: str, headers: dict[str, str], body: bytes, **options: str) -> str:
    secret = options.pop("secret", SECRET)
    with pytest.raises(SignatureRejected) as caught:
        onceward.verify(preset, secret=secret, headers=headers, body=body, now=NOW, **options)
    return caught.value.check


NOT_AN_OBJECT = "the body is not a JSON object: it is signed, but no event of this provider"
OAUTH_QUERY = "code=0907a61c&host=YWRtaW4&shop=some-shop.myshopify.com&state=1&timestamp=1337178173"
APP_PROXY_QUERY = "logged_in_customer_id=path_prefix=/apps/xshop=some-shop.myshopify.comtimestamp=1"
SESSION_TOKEN = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJzb21lLXNob3AifQ"


@pytest.mark.parametrize("text", [OAUTH_QUERY, APP_PROXY_QUERY, SESSION_TOKEN])
def test_a_signed_query_or_token_of_shopify_is_no_webhook(text: str) -> None:
    headers = {
        "X-Shopify-Hmac-SHA256": base64.b64encode(digest(text)).decode(),
        "X-Shopify-Topic": "orders/paid",
        "X-Shopify-Event-Id": "forged",
    }
    assert rejection("shopify", headers, text.encode()) == NOT_AN_OBJECT


def test_a_login_token_of_meta_is_no_webhook(subtests: pytest.Subtests) -> None:
    for kind, text in [
        ("signed_request", "eyJ1c2VyX2lkIjoiMTIzIn0"),
        ("appsecret_proof", "EAABsbCS1iHgBAKzxTheAccessToken"),
        ("a blank before an object", "\n{}"),
        ("text after an object", "{}.x"),
    ]:
        with subtests.test(kind):
            headers = {"X-Hub-Signature-256": f"sha256={digest(text).hex()}"}
            assert rejection("meta", headers, text.encode()) == NOT_AN_OBJECT


def test_the_channel_authorization_of_pusher_is_no_webhook() -> None:
    text = f'1234.5678:private-orders:{{"time_ms":{NOW * 1000}}}'
    check = rejection("pusher", {"X-Pusher-Signature": digest(text).hex()}, text.encode())
    assert check == "expected one timestamp, found 0"


def test_an_item_of_adyen_is_no_webhook_of_its_platform() -> None:
    text = "7914073381342284::TestMerchant:order-1:1130:EUR:AUTHORISATION:true"
    signature = base64.b64encode(digest(text, bytes.fromhex(HEX))).decode()
    headers = {"hmacsignature": signature}
    check = rejection("adyen", headers, text.encode(), scheme="header", secret=HEX)
    assert check == NOT_AN_OBJECT


def test_the_signed_content_of_another_scheme_of_hookmesh_is_no_webhook() -> None:
    text = f'evt_1.{NOW}.{{"event_id":"evt_1"}}'
    headers = {"x-hookmesh-signature": digest(text).hex()}
    assert rejection("hookmesh", headers, text.encode(), scheme="body") == NOT_AN_OBJECT


def test_a_body_of_hookmesh_with_a_time_in_its_text_is_not_cut_there() -> None:
    event_id, rest = '{"note":"x', '{"}'
    proof = base64.b64encode(digest(f"{event_id}.{NOW}.{rest}")).decode()
    headers = {"webhook-id": event_id, "webhook-timestamp": f"{NOW}"}
    headers["webhook-signature"] = f"v1,{proof}"
    check = rejection("hookmesh", headers, rest.encode(), scheme="v1")
    assert check == "webhook-id is the beginning of a JSON body"


TR_DATA = "api_version=4&kind=create_customer&public_key=mine&redirect_url=https%3A%2F%2Fa.example"


def test_another_signed_text_of_braintree_is_no_webhook(subtests: pytest.Subtests) -> None:
    key = hashlib.sha1(b"private-key", usedforsecurity=False).digest()
    for kind, text in [
        ("tr_data", TR_DATA),
        ("challenge", "20f9f8ed05f77439fe955c977e4c8a53"),
        ("base64 of no XML", "bm90IHhtbA=="),
        ("no base64", "PG5v|dGU+"),
    ]:
        with subtests.test(kind):
            signature = f"mine|{hmac.digest(key, text.encode(), 'sha1').hex()}"
            body = urlencode({"bt_payload": text, "bt_signature": signature}).encode()
            assert rejection("braintree", {}, body, secret="mine:private-key") == (
                "form:bt_payload is not XML in base64: it is signed, but no event of this provider"
            )


def test_a_payload_of_braintree_may_begin_with_blanks() -> None:
    payload = base64.encodebytes(b"\n  <notification>" + b"a" * 80 + b"</notification>")
    body = urlencode({"bt_payload": payload}).encode()
    signed = onceward.sign("braintree", secret="mine:private-key", body=body)
    assert onceward.verify("braintree", secret="mine:private-key", headers={}, body=signed.body).id


def test_a_signed_challenge_token_of_x_is_no_event() -> None:
    source = make_source("source", preset="x-twitter", secrets=[SECRET])
    url = "https://shop.example/webhooks/source?crc_token=12345"
    reply = source.answer_challenge(Request(Headers([]), b"", method="GET", url=url))
    assert reply is not None
    signature = json.loads(reply.body)["response_token"].encode()
    headers = Headers([(b"x-twitter-webhooks-signature", signature)])
    with pytest.raises(SignatureRejected) as caught:
        source.verify(Request(headers, b"12345"), NOW)
    assert caught.value.check == NOT_AN_OBJECT


def test_x_does_not_sign_an_event_as_a_challenge_token() -> None:
    source = make_source("source", preset="x-twitter", secrets=[SECRET])
    url = f"https://shop.example/webhooks/source?{urlencode({'crc_token': '{}'})}"
    assert source.answer_challenge(Request(Headers([]), b"", method="GET", url=url)) is None


def test_bad_json_of_the_provider_is_still_an_event() -> None:
    body = b'{"id": 1, "name": "\xff", "n": ' + b"9" * 5000 + b", }\n"
    headers = {
        "X-Shopify-Hmac-SHA256": base64.b64encode(hmac.digest(SECRET.encode(), body, "sha256")),
        "X-Shopify-Topic": b"orders/paid",
        "X-Shopify-Event-Id": b"e1",
    }
    pairs = [(name.lower().encode(), value) for name, value in headers.items()]
    source = make_source("source", preset="shopify", secrets=[SECRET])
    assert isinstance(source.verify(Request(Headers(pairs), body), NOW), list)


def test_the_diagnosis_names_the_reason() -> None:
    source = make_source("source", preset="shopify", secrets=[SECRET])
    signature = base64.b64encode(digest(OAUTH_QUERY))
    headers = Headers([(b"x-shopify-hmac-sha256", signature)])
    diagnosis = diagnose(source, Request(headers, OAUTH_QUERY.encode()), NOW)
    assert not diagnosis.verified
    assert NOT_AN_OBJECT in [check.detail for check in diagnosis.checks]
