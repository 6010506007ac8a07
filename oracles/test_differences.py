"""Where a library and Onceward used to differ, or might.

What a library says is held to, and so is that Onceward says the same.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from oracles.covered import ORACLES
from oracles.keys import Keys
from oracles.oracle import PLAIN, Oracle, Request
from oracles.pypi.development import LIVEKIT_KEY, box_signed, pubsub_signed
from oracles.pypi.messaging import messagebird_signed
from oracles.pypi.tokens import body_hash_base64
from oracles.verdicts import is_genuine, need, signed

Signs = Callable[[Request, str], Request]


def _hmac(secret: str, content: bytes) -> bytes:
    return hmac.digest(secret.encode(), content, hashlib.sha256)


def _now() -> str:
    return str(int(time.time()))


def mercadopago_with_capitals(request: Request, secret: str) -> Request:
    order, now = "ORD01JQ4S4KY8HWQ6NA5PXB65B3D3", _now()
    content = f"id:{order};request-id:{request.header('x-request-id')};ts:{now};"
    signature = f"ts={now},v1={_hmac(secret, content.encode()).hex()}"
    url = f"https://inbox.example/webhooks/mercadopago?data.id={order}&type=order"
    return replace(request, url=url).adding(x_signature=signature)


def contentful_with_a_query(request: Request, secret: str) -> Request:
    return _by_library("contentful", replace(request, url=f"{request.url}?space=1&a=b"), secret)


def contentful_with_a_space(request: Request, secret: str) -> Request:
    return _by_library("contentful", replace(request, url=f"{request.url}/a%20b"), secret)


def hook0_without_headers(request: Request, secret: str) -> Request:
    now = _now()
    code = _hmac(secret, now.encode() + b"..." + request.body).hex()
    return replace(request, headers={"X-Hook0-Signature": f"t={now},h=,v1={code}"})


def hook0_of_the_body_alone(request: Request, secret: str) -> Request:
    now = _now()
    code = _hmac(secret, now.encode() + b"." + request.body).hex()
    return replace(request, headers={"X-Hook0-Signature": f"t={now},v0={code}"})


def box_with_escaped_letters(request: Request, secret: str) -> Request:
    return box_signed(request, secret, escaped=True)


def shopify_events(request: Request, secret: str) -> Request:
    signature = base64.b64encode(_hmac(secret, request.body)).decode()
    return replace(request, headers={}).adding(
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
    return messagebird_signed(replace(request, body=b""), secret, without="payload_hash")


def messagebird_by_hs512(request: Request, secret: str) -> Request:
    return messagebird_signed(request, secret, algorithm="HS512")


def messagebird_for_ever(request: Request, secret: str) -> Request:
    return messagebird_signed(request, secret, without="exp")


def pubsub_by_the_shorter_name(request: Request, secret: str) -> Request:
    return pubsub_signed(request, secret, "accounts.google.com")


def _livekit(request: Request, secret: str, **claims: object) -> Request:
    import jwt

    own = secret.partition(":")[2]
    token = jwt.encode({"sha256": body_hash_base64(request), **claims}, own, "HS256")
    return request.adding(Authorization=token)


def livekit_for_ever(request: Request, secret: str) -> Request:
    return _livekit(request, secret, iss=LIVEKIT_KEY)


def livekit_of_another_key(request: Request, secret: str) -> Request:
    return _livekit(request, secret, iss="APIother", exp=int(time.time()) + 60)


def _by_library(preset: str, request: Request, secret: str) -> Request:
    signs = _oracle(preset).signs
    assert signs is not None
    return signs(request, secret)


def _oracle(preset: str, scheme: str | None = None) -> Oracle:
    return next(it for it in ORACLES if it.preset == preset and scheme in (None, it.scheme))


@dataclass(frozen=True, slots=True)
class Difference:
    """A request that a library takes for genuine, or does not, and Onceward says otherwise."""

    reason: str
    oracle: Oracle
    signs: Signs | None = None
    keys: Callable[[], Keys] | None = None
    is_genuine: bool = True

    def verifies(self) -> tuple[Request, Keys]:
        """The request, and its keys."""
        keys = (self.keys or self.oracle.keys)()
        signs = self.signs or self.oracle.signs
        assert signs is not None
        return signs(self.oracle.request, keys.private), keys


CAPITALS = "the id in the URL is signed as it is written, not in lower case"
NO_HEADERS = "where no headers are signed, a dot stands for their values all the same"
BODY_ALONE = "what was signed before there was v1 has v0, over the time and the body"
UNPADDED = "a secret in base64 may come without its padding"
NO_BODY = "a request without a body has a token without the hash of one"

DIFFERENCES = (
    Difference(CAPITALS, _oracle("mercadopago"), mercadopago_with_capitals),
    Difference("a query is signed escaped, twice", _oracle("contentful"), contentful_with_a_query),
    Difference("a path is signed escaped again", _oracle("contentful"), contentful_with_a_space),
    Difference(NO_HEADERS, _oracle("hook0"), hook0_without_headers),
    Difference(BODY_ALONE, replace(_oracle("hook0"), scheme="v0"), hook0_of_the_body_alone),
    Difference(
        "Box may sign the body with its letters escaped", _oracle("box"), box_with_escaped_letters
    ),
    Difference(
        "Shopify's events have headers without X- before them", _oracle("shopify"), shopify_events
    ),
    Difference(UNPADDED, _oracle("standard-webhooks"), keys=unpadded_secret),
    Difference(UNPADDED, _oracle("svix"), keys=unpadded_secret),
    Difference(NO_BODY, _oracle("messagebird"), messagebird_without_a_body),
    Difference(
        "tokens by HS512 are genuine",
        replace(_oracle("messagebird"), scheme="hs512"),
        messagebird_by_hs512,
    ),
    Difference(
        "a token must say when it ends",
        _oracle("messagebird"),
        messagebird_for_ever,
        is_genuine=False,
    ),
    Difference(
        "Google's issuer has two names", _oracle("google-pubsub"), pubsub_by_the_shorter_name
    ),
    Difference(
        "a token must say when it ends", _oracle("livekit"), livekit_for_ever, is_genuine=False
    ),
    Difference(
        "a token's issuer must be the key of the API",
        _oracle("livekit"),
        livekit_of_another_key,
        is_genuine=False,
    ),
)


def name(difference: Difference) -> str:
    return f"{difference.oracle.name}: {difference.reason}"


@pytest.mark.parametrize("difference", DIFFERENCES, ids=name)
def test_the_library_says(difference: Difference) -> None:
    need(difference.oracle)
    request, keys = difference.verifies()
    assert difference.oracle.accepts(request, keys.public) == difference.is_genuine


@pytest.mark.parametrize("difference", DIFFERENCES, ids=name)
def test_onceward_says_the_same(difference: Difference) -> None:
    need(difference.oracle)
    request, keys = difference.verifies()
    assert is_genuine(difference.oracle, request, keys) == difference.is_genuine


def test_json_behind_a_space_is_signed_as_json_for_twilio() -> None:
    oracle = _oracle("twilio", "sha256").asked_about(b" " + PLAIN.body)
    need(oracle)
    keys = oracle.keys()
    assert oracle.accepts(signed(oracle, keys), keys.public)
