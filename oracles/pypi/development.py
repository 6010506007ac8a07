"""Code, hosting, identity, AI models, customers, documents."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from oracles.keys import Keys, certificate, plain_secret
from oracles.pypi.tokens import VALID_SECONDS, body_hash_base64, is_valid_token, make_token
from oracles.verifier import FORM, PLAIN_REQUEST, Request, Verifier, json_request, replacing

_EXPIRED_SECONDS: Final = VALID_SECONDS + 120


def _verify_github(header: str) -> Any:
    def verify(request: Request, secret: str) -> bool:
        from gidgethub.sansio import validate_event

        validate_event(request.body, signature=request.header(header), secret=secret)
        return True

    return verify


def _verify_netlify(request: Request, secret: str) -> bool:
    token = request.header("X-Webhook-Signature")
    return is_valid_token(token, secret, request, "HS256", "sha256", issuer="netlify")


def _sign_netlify(request: Request, secret: str) -> Request:
    token = make_token(request, secret, "HS256", "sha256", iss="netlify")
    return request.with_headers(X_Webhook_Signature=token)


@cache
def _elevenlabs() -> Any:
    from elevenlabs.client import ElevenLabs

    return ElevenLabs(api_key="none").webhooks


def _verify_elevenlabs(request: Request, secret: str) -> bool:
    header = request.header("ElevenLabs-Signature")
    _elevenlabs().construct_event(request.text, header, secret)
    return True


def _verify_retell(request: Request, secret: str) -> bool:
    from retell.lib.webhook_auth import verify

    return verify(request.text, secret, request.header("X-Retell-Signature"))


def _sign_retell(request: Request, secret: str) -> Request:
    from retell.lib.webhook_auth import symmetric

    return request.with_headers(X_Retell_Signature=symmetric["sign"](request.text, secret))


LIVEKIT_KEY: Final = "APIv7Rk2"


def livekit_keys() -> Keys:
    """Return ``API_KEY:API_SECRET``; the API key is the issuer of the tokens."""
    pair = plain_secret()
    return Keys(f"{LIVEKIT_KEY}:{pair.private}", f"{LIVEKIT_KEY}:{pair.public}")


def _verify_livekit(request: Request, secret: str) -> bool:
    from livekit.api import TokenVerifier, WebhookReceiver

    receiver = WebhookReceiver(TokenVerifier(*secret.split(":")))
    receiver.receive(request.text, request.header("Authorization"))
    return True


def _sign_livekit(request: Request, secret: str) -> Request:
    from livekit.api import AccessToken

    token = AccessToken(*secret.split(":")).with_sha256(body_hash_base64(request))
    return request.with_headers(Authorization=token.to_jwt())


def _verify_workos(request: Request, secret: str) -> bool:
    from workos.webhooks._verification import verify_header

    signature = request.header("WorkOS-Signature")
    verify_header(event_body=request.body, event_signature=signature, secret=secret)
    return True


SNS_TOPIC: Final = "arn:aws:sns:us-west-2:123456789012:Orders"


def sns_keys() -> Keys:
    """Return a private key and its certificate, both after the topic."""
    pair = certificate()
    return Keys(f"{SNS_TOPIC}:{pair.private}", f"{SNS_TOPIC}:{pair.public}")


def _verify_sns(request: Request, secret: str) -> bool:
    """Verify with the given certificate, which the library would otherwise download."""
    from sns_message_validator import SNSMessageValidator

    secret = secret.removeprefix(f"{SNS_TOPIC}:")
    validator = SNSMessageValidator()
    validator._cert_session = SimpleNamespace(
        get=lambda _: SimpleNamespace(content=secret.encode())
    )
    validator.validate_message(request.document)
    return True


PUBSUB_EMAIL: Final = "push@project.iam.example"


def pubsub_keys() -> Keys:
    """Return a private key and its certificate, both after the account's email."""
    pair = certificate()
    return Keys(f"{PUBSUB_EMAIL}:{pair.private}", f"{PUBSUB_EMAIL}:{pair.public}")


def _verify_pubsub(request: Request, secret: str) -> bool:
    """Verify with the given certificate, which the library would otherwise download."""
    from google.oauth2.id_token import verify_oauth2_token

    email, _, certificate = secret.partition(":")

    def fetch(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(status=200, data=json.dumps({"a-key": certificate}).encode())

    token = request.header("Authorization").removeprefix("Bearer ")
    claims = verify_oauth2_token(token, fetch, audience=request.url)
    return bool(claims["email"] == email and claims["email_verified"])


def sign_pubsub(
    request: Request, secret: str, issuer: str = "https://accounts.google.com"
) -> Request:
    """Return the request with a token from the issuer."""
    from google.auth import crypt, jwt

    now = int(time.time())
    email, _, key = secret.partition(":")
    claims = {
        "iss": issuer,
        "aud": request.url,
        "iat": now,
        "exp": now + VALID_SECONDS,
        "email": email,
        "email_verified": True,
    }
    token = jwt.encode(crypt.RSASigner.from_string(key), claims)
    return request.with_headers(Authorization=f"Bearer {token.decode()}")


def _change_url(request: Request) -> Request:
    return replace(request, url=f"{request.url}/elsewhere")


def _verify_hubspot(request: Request, secret: str) -> bool:
    from hubspot.utils.signature import Signature

    return Signature.is_valid(
        signature=request.header("X-HubSpot-Signature-v3"),
        client_secret=secret,
        request_body=request.text,
        http_uri=request.url,
        http_method=request.method,
        signature_version="v3",
        timestamp=request.header("X-HubSpot-Request-Timestamp"),
    )


def _sign_hubspot(request: Request, secret: str) -> Request:
    from hubspot.utils.signature import Signature

    now = str(int(time.time() * 1000))
    signature = Signature.get_signature(
        secret, request.text, "v3", request.url, request.method, now
    )
    return request.with_headers(X_HubSpot_Signature_v3=signature, X_HubSpot_Request_Timestamp=now)


def _accented_secret() -> Keys:
    """Return a secret that Unicode normalization (NFKD) changes."""
    secret = f"clé-ﬁ-{plain_secret().private}"
    return Keys(secret, secret)


def _verify_easypost(request: Request, secret: str) -> bool:
    from easypost.util import validate_webhook

    headers = {"X-Hmac-Signature": request.header("X-Hmac-Signature")}
    validate_webhook(request.body, headers, secret)
    return True


def _verify_box(request: Request, secret: str) -> bool:
    from box_sdk_gen.managers.webhooks import WebhooksManager

    return WebhooksManager.validate_message(request.text, request.lower_headers, secret)


def sign_box(request: Request, secret: str, *, escaped: bool = False) -> Request:
    """Return the request, signed over its body as sent or with non-ASCII characters escaped."""
    from box_sdk_gen.internal.utils import compute_webhook_signature

    now = datetime.now(UTC).isoformat(timespec="seconds")
    request = request.with_headers(Box_Delivery_Timestamp=now)
    signature = compute_webhook_signature(
        request.text, request.lower_headers, secret, escape_body=escaped
    )
    return request.with_headers(Box_Signature_Primary=signature)


def _verify_dropbox_sign(request: Request, secret: str) -> bool:
    from dropbox_sign import EventCallbackHelper
    from dropbox_sign.models import EventCallbackRequest

    callback = EventCallbackRequest.from_json(dict(parse_qsl(request.text))["json"])
    return EventCallbackHelper.is_valid(secret, callback)


_CALLBACK: Final = {
    "event": {
        "event_time": "1773480413",
        "event_type": "signature_request_sent",
        "event_hash": "",
        "event_metadata": {"reported_for_account_id": "63522885"},
    }
}
SNS_REQUEST: Final = json_request(
    {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": SNS_TOPIC,
        "Subject": "An order",
        "Message": "Zoë paid",
        "Timestamp": "2026-03-14T09:26:53.000Z",
        "SigningCertURL": "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-1.pem",
        "UnsubscribeURL": "https://sns.us-west-2.amazonaws.com/?Action=Unsubscribe",
    }
)

VERIFIERS: Final = (
    Verifier(
        preset="github",
        scheme="sha256",
        package="gidgethub",
        verify=_verify_github("X-Hub-Signature-256"),
    ),
    Verifier(
        preset="github",
        scheme="sha1",
        package="gidgethub",
        verify=_verify_github("X-Hub-Signature"),
    ),
    Verifier(
        preset="netlify",
        package="PyJWT",
        module="jwt",
        verify=_verify_netlify,
        sign=_sign_netlify,
        stale_seconds=_EXPIRED_SECONDS,
    ),
    Verifier(
        preset="elevenlabs",
        package="elevenlabs",
        verify=_verify_elevenlabs,
        stale_seconds=1860,
    ),
    Verifier(
        preset="retell",
        package="retell-sdk",
        module="retell",
        verify=_verify_retell,
        sign=_sign_retell,
        stale_seconds=360,
    ),
    Verifier(
        preset="livekit",
        package="livekit-api",
        module="livekit.api",
        verify=_verify_livekit,
        sign=_sign_livekit,
        make_keys=livekit_keys,
        request=json_request({"id": "EV_7Rk2", "event": "room_started", "room": {"name": "Zoë"}}),
        stale_seconds=_EXPIRED_SECONDS,
    ),
    Verifier(preset="workos", package="workos", verify=_verify_workos, stale_seconds=240),
    Verifier(
        preset="aws-sns",
        scheme="version-1",
        package="aws-sns-message-validator",
        module="sns_message_validator",
        verify=_verify_sns,
        make_keys=sns_keys,
        request=SNS_REQUEST,
        tamper=replacing(" paid", " left"),
    ),
    Verifier(
        preset="google-pubsub",
        scheme="oidc",
        package="google-auth",
        module="google.auth",
        verify=_verify_pubsub,
        sign=sign_pubsub,
        make_keys=pubsub_keys,
        request=json_request(
            {"message": {"messageId": "13", "data": "e30="}, "subscription": "a/b"}
        ),
        tamper=_change_url,
        stale_seconds=_EXPIRED_SECONDS,
    ),
    Verifier(
        preset="hubspot",
        package="hubspot-api-client",
        module="hubspot",
        verify=_verify_hubspot,
        sign=_sign_hubspot,
        request=json_request([{"eventId": 1, "subscriptionId": 2, "objectId": 3, "occurredAt": 4}]),
        stale_seconds=360,
    ),
    Verifier(
        preset="easypost", package="easypost", verify=_verify_easypost, make_keys=_accented_secret
    ),
    Verifier(
        preset="box",
        package="box-sdk-gen",
        module="box_sdk_gen",
        verify=_verify_box,
        sign=sign_box,
        request=PLAIN_REQUEST.with_headers(
            Box_Signature_Version="1", Box_Signature_Algorithm="HmacSHA256"
        ),
        stale_seconds=660,
    ),
    Verifier(
        preset="dropbox-sign",
        package="dropbox-sign",
        module="dropbox_sign",
        verify=_verify_dropbox_sign,
        request=Request(
            headers={"Content-Type": FORM},
            body=urlencode({"json": json.dumps(_CALLBACK)}).encode(),
        ),
        tamper=replacing("request_sent", "request_viewed"),
    ),
)
