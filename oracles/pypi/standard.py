"""Standard Webhooks and the providers that follow it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from oracles.keys import base64_secret, plain_secret, whsec_secret
from oracles.verifier import PLAIN_REQUEST, Request, Verifier, json_request

STALE_SECONDS: Final = 300 + 60
WITH_ID: Final = PLAIN_REQUEST.with_headers(webhook_id="msg_2KWPBgLlAfxdpx2AI54pPJ85f4W")
WITH_SVIX_ID: Final = PLAIN_REQUEST.with_headers(svix_id="msg_2KWPBgLlAfxdpx2AI54pPJ85f4W")
HOOK0_REQUEST: Final = json_request(
    {"order": "Zoë"}, X_Event_Id="9f1c", X_Event_Type="shop.order.paid"
)


def _verify_standard(request: Request, secret: str) -> bool:
    from standardwebhooks import Webhook

    Webhook(secret).verify(request.body, dict(request.headers))
    return True


def _sign_standard(request: Request, secret: str) -> Request:
    from standardwebhooks import Webhook

    now = datetime.now(UTC)
    return request.with_headers(
        webhook_timestamp=str(int(now.timestamp())),
        webhook_signature=Webhook(secret).sign(request.header("webhook-id"), now, request.text),
    )


def _verify_svix(request: Request, secret: str) -> bool:
    from svix.webhooks import Webhook

    Webhook(secret).verify(request.body, dict(request.headers))
    return True


def _sign_svix(request: Request, secret: str) -> Request:
    from svix.webhooks import Webhook

    now = datetime.now(UTC)
    return request.with_headers(
        svix_timestamp=str(int(now.timestamp())),
        svix_signature=Webhook(secret).sign(request.header("svix-id"), now, request.text),
    )


def _verify_resend(request: Request, secret: str) -> bool:
    import resend

    names = ("id", "timestamp", "signature")
    headers = {name: request.header(f"svix-{name}") for name in names}
    options = {"payload": request.text, "headers": headers, "webhook_secret": secret}
    resend.Webhooks.verify(options)
    return True


@cache
def _lithic() -> Any:
    from lithic import Lithic

    return Lithic(api_key="none").webhooks


def _verify_lithic(request: Request, secret: str) -> bool:
    _lithic().verify_signature(request.body, request.headers, secret=secret)
    return True


def _verify_polar(request: Request, secret: str) -> bool:
    from polar.webhooks import validate_event

    types = frozenset({request.document["type"]})
    validate_event(request.body, dict(request.headers), secret, types, dict)
    return True


@cache
def _openai() -> Any:
    from openai import OpenAI

    return OpenAI(api_key="none").webhooks


def _verify_openai(request: Request, secret: str) -> bool:
    _openai().verify_signature(request.body, request.headers, secret=secret)
    return True


def _verify_replicate(request: Request, secret: str) -> bool:
    from replicate.webhook import Webhooks, WebhookSigningSecret

    key = WebhookSigningSecret(key=secret)
    Webhooks.validate(headers=dict(request.headers), body=request.text, secret=key, tolerance=300)
    return True


@cache
def _finch() -> Any:
    from finch import Finch

    return Finch(access_token="none").webhooks


def _verify_finch(request: Request, secret: str) -> bool:
    _finch().verify_signature(request.body, request.headers, secret=secret)
    return True


def _verify_hook0(request: Request, secret: str) -> bool:
    from hook0.signature import verify_webhook_signature

    signature = request.header("X-Hook0-Signature")
    return verify_webhook_signature(signature, request.body, request.headers, secret, 300)


def _verify_convoy(request: Request, secret: str) -> bool:
    from convoy.utils.webhook import Webhook

    # The library returns an error message instead of False.
    return Webhook(secret).verify_signature(request.text, request.header("X-Signature")) is True


def _sign_convoy(request: Request, secret: str) -> Request:
    from convoy.utils.webhook import Webhook

    return request.with_headers(X_Signature=Webhook(secret).create_signature(request.text))


VERIFIERS: Final = (
    Verifier(
        preset="standard-webhooks",
        package="standardwebhooks",
        verify=_verify_standard,
        sign=_sign_standard,
        make_keys=whsec_secret,
        request=WITH_ID,
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="gitlab",
        package="standardwebhooks",
        verify=_verify_standard,
        sign=_sign_standard,
        make_keys=whsec_secret,
        request=WITH_ID.with_headers(X_Gitlab_Event="Push Hook"),
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="svix",
        package="svix",
        verify=_verify_svix,
        sign=_sign_svix,
        make_keys=whsec_secret,
        request=WITH_SVIX_ID,
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="resend",
        package="resend",
        verify=_verify_resend,
        make_keys=whsec_secret,
        request=WITH_SVIX_ID,
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="lithic",
        package="lithic",
        verify=_verify_lithic,
        make_keys=whsec_secret,
        request=WITH_ID,
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="polar",
        package="polar-sdk",
        module="polar",
        verify=_verify_polar,
        make_keys=plain_secret,
        request=WITH_ID,
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="openai",
        package="openai",
        verify=_verify_openai,
        make_keys=whsec_secret,
        request=WITH_ID,
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="replicate",
        package="replicate",
        verify=_verify_replicate,
        make_keys=whsec_secret,
        request=WITH_ID,
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="finch",
        package="finch-api",
        module="finch",
        verify=_verify_finch,
        make_keys=base64_secret,
        request=PLAIN_REQUEST.with_headers(Finch_Event_Id="evt_7Rk2"),
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="hook0",
        package="hook0-client",
        module="hook0",
        verify=_verify_hook0,
        request=HOOK0_REQUEST,
        stale_seconds=STALE_SECONDS,
    ),
    Verifier(
        preset="hmac",
        package="convoy-python",
        module="convoy",
        verify=_verify_convoy,
        sign=_sign_convoy,
        request=PLAIN_REQUEST.with_headers(X_Event_Id="evt_7Rk2"),
    ),
)
