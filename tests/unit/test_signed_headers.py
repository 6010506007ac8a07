"""Hook0 and Contentful: only a header that the signature lists is signed."""

import hashlib
import hmac
from typing import Any

import pytest

import onceward
from onceward.errors import ConfigurationError, SignatureRejected

SECRET = "a-secret-of-the-account"
NOW = 1_760_000_000
URL = "https://shop.example/webhooks/source"
BODY = b'{"id":"7","total":"12.50","sys":{"id":"s1","version":3}}'


def digest(content: bytes) -> str:
    return hmac.digest(SECRET.encode(), content, hashlib.sha256).hex()


def verify(
    preset: str, headers: dict[str, str], body: bytes = BODY, scheme: str | None = None
) -> onceward.Verified:
    return onceward.verify(
        preset, secret=SECRET, headers=headers, body=body, url=URL, now=NOW, scheme=scheme
    )


def rejection(preset: str, headers: dict[str, str], body: bytes = BODY, **options: Any) -> str:
    with pytest.raises(SignatureRejected) as caught:
        verify(preset, headers, body, **options)
    return caught.value.check


def hook0(names: str, values: list[str], body: bytes = BODY) -> dict[str, str]:
    content = f"{NOW}.{names}.{'.'.join(values)}.".encode() + body
    listed = dict(zip(names.split(" "), values, strict=True)) if names else {}
    return {"X-Hook0-Signature": f"t={NOW},h={names},v1={digest(content)}", **listed}


HOOK0 = hook0("x-event-id x-event-type", ["e1", "shop.order.paid"])


def test_hook0_signs_the_id_and_the_type() -> None:
    verified = verify("hook0", HOOK0)
    assert (verified.id, verified.type) == ("e1", "shop.order.paid")


@pytest.mark.parametrize(
    ("names", "values"),
    [("", []), ("x-event-id", ["e1"]), ("x-event-type", ["shop.order.paid"])],
)
def test_hook0_is_refused_if_the_id_or_type_is_not_listed(names: str, values: list[str]) -> None:
    unlisted = {"X-Event-Id": "forged", "X-Event-Type": "shop.order.refunded"}
    headers = {name.lower(): value for name, value in unlisted.items()} | hook0(names, values)
    assert rejection("hook0", headers) == "X-Event-Id or X-Event-Type is not signed"


@pytest.mark.parametrize(
    ("event_id", "event_type", "body"),
    [
        ("e1.shop", "order.paid." + BODY[:-1].decode().partition(".")[0], b'50"}'),
        ("e1", "shop.order", b"paid." + BODY),
        ("e1.shop", "order.paid", BODY),
    ],
    ids=["into the body", "a shorter type", "a longer id"],
)
def test_hook0_cannot_be_cut_elsewhere(event_id: str, event_type: str, body: bytes) -> None:
    headers = HOOK0 | {"x-event-id": event_id, "x-event-type": event_type}
    assert "has too many or too few dots" in rejection("hook0", headers, body)


def test_hook0_is_refused_if_another_signed_header_contains_a_dot() -> None:
    headers = hook0("x-api x-event-id x-event-type", ["1.2", "e1", "shop.order.paid"])
    assert rejection("hook0", headers) == "the signed header x-api has too many or too few dots"
    unsigned = {name: value for name, value in headers.items() if "hook0" not in name.lower()}
    with pytest.raises(ConfigurationError, match="header x-api has too many or too few dots"):
        onceward.sign("hook0", secret=SECRET, headers=unsigned, body=BODY)


def test_a_header_of_hook0_with_a_dot_in_its_name_is_refused() -> None:
    headers = hook0("x-event-id x-event-type x.y", ["e1", "shop.order.paid", "1"])
    assert rejection("hook0", headers) == "X-Event-Id or X-Event-Type is not signed"


def test_hook0_lists_its_headers_once() -> None:
    signature = HOOK0["X-Hook0-Signature"] + ",h=x-event-id x-event-type"
    check = rejection("hook0", HOOK0 | {"X-Hook0-Signature": signature})
    assert check == "the signature header must list the signed headers once"


@pytest.mark.parametrize(("count", "is_accepted"), [(50, True), (51, False)])
def test_the_number_of_signed_headers_is_limited(count: int, *, is_accepted: bool) -> None:
    more = [f"x-{number}" for number in range(count - 2)]
    names = " ".join(["x-event-id", "x-event-type", *more])
    headers = hook0(names, ["e1", "shop.order.paid", *["1" for _ in more]])
    if is_accepted:
        assert verify("hook0", headers).id == "e1"
    else:
        assert rejection("hook0", headers) == "more than 50 headers are signed"


def test_the_content_of_hook0_v1_is_no_body_of_v0() -> None:
    body = b"x-event-id x-event-type.e1.shop.order.paid." + BODY
    signature = HOOK0["X-Hook0-Signature"].replace("v1=", "v0=")
    headers = {"X-Hook0-Signature": signature, "X-Event-Id": "e2"}
    assert rejection("hook0", headers, body, scheme="v0") == "the body was signed as version 1"


CONTENTFUL_LIST = "x-contentful-signed-headers,x-contentful-timestamp"


def contentful(listed: str, **more: str) -> dict[str, str]:
    headers = {
        "x-contentful-signed-headers": listed,
        "x-contentful-timestamp": str(NOW * 1000),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    signed = ";".join(f"{name}:{headers[name]}" for name in sorted(listed.split(",")))
    content = f"POST\n/webhooks/source\n{signed}\n".encode() + BODY
    return headers | {"x-contentful-signature": digest(content)}


@pytest.mark.parametrize("listed", ["x-contentful-timestamp", "x-contentful-signed-headers"])
def test_contentful_must_sign_its_timestamp_and_its_list(listed: str) -> None:
    verify("contentful", contentful(CONTENTFUL_LIST))
    assert rejection("contentful", contentful(listed)) == (
        "the timestamp or the list of signed headers is not signed"
    )


def test_a_header_of_contentful_cannot_contain_the_next_one() -> None:
    listed = f"content-type,{CONTENTFUL_LIST},x-note"
    genuine = contentful(listed, content_type="a", x_note="b;x-contentful-timestamp:7")
    assert rejection("contentful", genuine) == "a signed header contains another one"


def test_contentful_is_not_signed_with_a_header_that_contains_another() -> None:
    headers = {"x-note": "b;x-contentful-timestamp:7"}
    with pytest.raises(ConfigurationError, match="cannot be signed: a signed header contains"):
        onceward.sign("contentful", secret=SECRET, headers=headers, body=BODY)
