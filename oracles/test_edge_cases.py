"""Edge cases in which Onceward once differed from a library, or might.

Each library's decision is pinned, and Onceward must decide alike, except where it is stricter.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from oracles.comparison import onceward_accepts, sign_with_onceward, skip_unless_installed
from oracles.keys import Keys
from oracles.libraries import VERIFIERS
from oracles.pypi.development import LIVEKIT_KEY, sign_box, sign_pubsub
from oracles.pypi.messaging import sign_messagebird
from oracles.pypi.tokens import body_hash_base64
from oracles.verifier import PLAIN_REQUEST, Request, Sign, Verifier


def _hmac(secret: str, content: bytes) -> bytes:
    return hmac.digest(secret.encode(), content, hashlib.sha256)


def _now() -> str:
    return str(int(time.time()))


def mercadopago_with_capitals(request: Request, secret: str) -> Request:
    order, now = "ORD01JQ4S4KY8HWQ6NA5PXB65B3D3", _now()
    content = f"id:{order};request-id:{request.header('x-request-id')};ts:{now};"
    signature = f"ts={now},v1={_hmac(secret, content.encode()).hex()}"
    url = f"https://inbox.example/webhooks/mercadopago?data.id={order}&type=order"
    return replace(request, url=url).with_headers(x_signature=signature)


def contentful_with_a_query(request: Request, secret: str) -> Request:
    return _sign_with_library("contentful", f"{request.url}?space=1&a=b", request, secret)


def contentful_with_a_space(request: Request, secret: str) -> Request:
    return _sign_with_library("contentful", f"{request.url}/a%20b", request, secret)


def hook0_without_signed_headers(request: Request, secret: str) -> Request:
    now = _now()
    digest = _hmac(secret, now.encode() + b"..." + request.body).hex()
    return replace(request, headers={"X-Hook0-Signature": f"t={now},h=,v1={digest}"})


def hook0_v0(request: Request, secret: str) -> Request:
    now = _now()
    digest = _hmac(secret, now.encode() + b"." + request.body).hex()
    return replace(request, headers={"X-Hook0-Signature": f"t={now},v0={digest}"})


def box_with_an_escaped_body(request: Request, secret: str) -> Request:
    return sign_box(request, secret, escaped=True)


def shopify_without_x_prefix(request: Request, secret: str) -> Request:
    signature = base64.b64encode(_hmac(secret, request.body)).decode()
    return replace(request, headers={}).with_headers(
        Shopify_Hmac_Sha256=signature,
        Shopify_Topic="orders",
        Shopify_Shop_Domain="a-shop.example",
        Shopify_API_Version="2026-01",
        Shopify_Webhook_Id="b54557e4",
        Shopify_Event_Id="98880550",
    )


def unpadded_secret() -> Keys:
    secret = f"whsec_{base64.b64encode(b'of 26 bytes, not of 24 ...').decode().rstrip('=')}"
    return Keys(secret, secret)


def messagebird_without_a_body(request: Request, secret: str) -> Request:
    return sign_messagebird(replace(request, body=b""), secret, without="payload_hash")


def messagebird_by_hs512(request: Request, secret: str) -> Request:
    return sign_messagebird(request, secret, algorithm="HS512")


def messagebird_without_expiry(request: Request, secret: str) -> Request:
    return sign_messagebird(request, secret, without="exp")


def pubsub_by_the_short_issuer(request: Request, secret: str) -> Request:
    return sign_pubsub(request, secret, "accounts.google.com")


def _sign_livekit(request: Request, secret: str, **claims: object) -> Request:
    import jwt

    api_secret = secret.partition(":")[2]
    token = jwt.encode({"sha256": body_hash_base64(request), **claims}, api_secret, "HS256")
    return request.with_headers(Authorization=token)


def livekit_without_expiry(request: Request, secret: str) -> Request:
    return _sign_livekit(request, secret, iss=LIVEKIT_KEY)


def livekit_with_another_api_key(request: Request, secret: str) -> Request:
    return _sign_livekit(request, secret, iss="APIother", exp=int(time.time()) + 60)


def _sign_with_library(preset: str, url: str, request: Request, secret: str) -> Request:
    sign = _verifier(preset).sign
    assert sign is not None
    return sign(replace(request, url=url), secret)


def _verifier(preset: str, scheme: str | None = None) -> Verifier:
    matching = [verifier for verifier in VERIFIERS if verifier.preset == preset]
    return next(verifier for verifier in matching if scheme in (None, verifier.scheme))


@dataclass(frozen=True, slots=True)
class EdgeCase:
    """A request on which the library's decision is not obvious."""

    reason: str
    verifier: Verifier
    sign: Sign | None = None
    make_keys: Callable[[], Keys] | None = None
    is_accepted: bool = True

    def signed_request(self) -> tuple[Request, Keys]:
        """Return the signed request and its keys."""
        keys = (self.make_keys or self.verifier.make_keys)()
        sign = self.sign or self.verifier.sign
        assert sign is not None
        return sign(self.verifier.request, keys.private), keys


UNPADDED_SECRET = "a base64 secret may lack its padding"
EDGE_CASES = (
    EdgeCase(
        "the id in the URL is signed as written, not in lower case",
        _verifier("mercadopago"),
        mercadopago_with_capitals,
    ),
    EdgeCase("the query is escaped twice", _verifier("contentful"), contentful_with_a_query),
    EdgeCase("the path is escaped again", _verifier("contentful"), contentful_with_a_space),
    EdgeCase(
        "v0, the version before v1, covers the time and the body",
        replace(_verifier("hook0"), scheme="v0"),
        hook0_v0,
    ),
    EdgeCase(
        "the body may be signed with non-ASCII characters escaped",
        _verifier("box"),
        box_with_an_escaped_body,
    ),
    EdgeCase("headers may lack the X- prefix", _verifier("shopify"), shopify_without_x_prefix),
    EdgeCase(UNPADDED_SECRET, _verifier("standard-webhooks"), make_keys=unpadded_secret),
    EdgeCase(UNPADDED_SECRET, _verifier("svix"), make_keys=unpadded_secret),
    EdgeCase(
        "a request without a body has a token without a body hash",
        _verifier("messagebird"),
        messagebird_without_a_body,
    ),
    EdgeCase(
        "HS512 tokens are accepted",
        replace(_verifier("messagebird"), scheme="hs512"),
        messagebird_by_hs512,
    ),
    EdgeCase(
        "a token must expire",
        _verifier("messagebird"),
        messagebird_without_expiry,
        is_accepted=False,
    ),
    EdgeCase(
        "Google's issuer has two names", _verifier("google-pubsub"), pubsub_by_the_short_issuer
    ),
    EdgeCase(
        "a token must expire", _verifier("livekit"), livekit_without_expiry, is_accepted=False
    ),
    EdgeCase(
        "the issuer of a token must be the API key",
        _verifier("livekit"),
        livekit_with_another_api_key,
        is_accepted=False,
    ),
)


STRICTER = (
    EdgeCase(
        "a list of signed headers without the id is refused",
        _verifier("hook0"),
        hook0_without_signed_headers,
    ),
)
"""Requests that the library accepts, and Onceward refuses."""


def name(case: EdgeCase) -> str:
    return f"{case.verifier.name}: {case.reason}"


@pytest.mark.parametrize("case", EDGE_CASES, ids=name)
def test_the_library_decides_as_pinned(case: EdgeCase) -> None:
    skip_unless_installed(case.verifier)
    request, keys = case.signed_request()
    assert case.verifier.accepts(request, keys.public) == case.is_accepted


@pytest.mark.parametrize("case", EDGE_CASES, ids=name)
def test_onceward_decides_as_the_library_does(case: EdgeCase) -> None:
    skip_unless_installed(case.verifier)
    request, keys = case.signed_request()
    assert onceward_accepts(case.verifier, request, keys) == case.is_accepted


@pytest.mark.parametrize("case", STRICTER, ids=name)
def test_onceward_refuses_what_the_library_accepts(case: EdgeCase) -> None:
    skip_unless_installed(case.verifier)
    request, keys = case.signed_request()
    assert case.verifier.accepts(request, keys.public)
    assert not onceward_accepts(case.verifier, request, keys)


def test_json_after_a_leading_space_is_signed_as_json_for_twilio() -> None:
    verifier = _verifier("twilio", "sha256").with_body(b" " + PLAIN_REQUEST.body)
    skip_unless_installed(verifier)
    keys = verifier.make_keys()
    assert verifier.accepts(sign_with_onceward(verifier, keys), keys.public)
