"""Standard Webhooks, and who follows it: the id and the time are signed with the body."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from oracles.keys import base64_text, text, whsec
from oracles.oracle import PLAIN, Oracle, Request, of_json

TOO_OLD: Final = 300 + 60
WITH_ID: Final = PLAIN.adding(webhook_id="msg_2KWPBgLlAfxdpx2AI54pPJ85f4W")
WITH_SVIX_ID: Final = PLAIN.adding(svix_id="msg_2KWPBgLlAfxdpx2AI54pPJ85f4W")
HOOK0_REQUEST: Final = of_json({"order": "Zoë"}, X_Event_Id="9f1c", X_Event_Type="order.paid")


def _standard_verifies(request: Request, secret: str) -> bool:
    from standardwebhooks import Webhook

    Webhook(secret).verify(request.body, dict(request.headers))
    return True


def _standard_signs(request: Request, secret: str) -> Request:
    from standardwebhooks import Webhook

    now = datetime.now(UTC)
    return request.adding(
        webhook_timestamp=str(int(now.timestamp())),
        webhook_signature=Webhook(secret).sign(request.header("webhook-id"), now, request.text),
    )


def _svix_verifies(request: Request, secret: str) -> bool:
    from svix.webhooks import Webhook

    Webhook(secret).verify(request.body, dict(request.headers))
    return True


def _svix_signs(request: Request, secret: str) -> Request:
    from svix.webhooks import Webhook

    now = datetime.now(UTC)
    return request.adding(
        svix_timestamp=str(int(now.timestamp())),
        svix_signature=Webhook(secret).sign(request.header("svix-id"), now, request.text),
    )


def _resend_verifies(request: Request, secret: str) -> bool:
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


def _lithic_verifies(request: Request, secret: str) -> bool:
    _lithic().verify_signature(request.body, request.headers, secret=secret)
    return True


def _polar_verifies(request: Request, secret: str) -> bool:
    from polar.webhooks import validate_event

    types = frozenset({request.document["type"]})
    validate_event(request.body, dict(request.headers), secret, types, dict)
    return True


@cache
def _openai() -> Any:
    from openai import OpenAI

    return OpenAI(api_key="none").webhooks


def _openai_verifies(request: Request, secret: str) -> bool:
    _openai().verify_signature(request.body, request.headers, secret=secret)
    return True


def _replicate_verifies(request: Request, secret: str) -> bool:
    from replicate.webhook import Webhooks, WebhookSigningSecret

    key = WebhookSigningSecret(key=secret)
    Webhooks.validate(headers=dict(request.headers), body=request.text, secret=key, tolerance=300)
    return True


@cache
def _finch() -> Any:
    from finch import Finch

    return Finch(access_token="none").webhooks


def _finch_verifies(request: Request, secret: str) -> bool:
    _finch().verify_signature(request.body, request.headers, secret=secret)
    return True


def _hook0_verifies(request: Request, secret: str) -> bool:
    from hook0.signature import verify_webhook_signature

    signature = request.header("X-Hook0-Signature")
    return verify_webhook_signature(signature, request.body, request.headers, secret, 300)


def _convoy_verifies(request: Request, secret: str) -> bool:
    from convoy.utils.webhook import Webhook

    # What it refuses it answers with a text.
    return Webhook(secret).verify_signature(request.text, request.header("X-Signature")) is True


def _convoy_signs(request: Request, secret: str) -> Request:
    from convoy.utils.webhook import Webhook

    return request.adding(X_Signature=Webhook(secret).create_signature(request.text))


ORACLES: Final = (
    Oracle(
        preset="standard-webhooks",
        package="standardwebhooks",
        verifies=_standard_verifies,
        signs=_standard_signs,
        keys=whsec,
        request=WITH_ID,
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="gitlab",
        package="standardwebhooks",
        verifies=_standard_verifies,
        signs=_standard_signs,
        keys=whsec,
        request=WITH_ID.adding(X_Gitlab_Event="Push Hook"),
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="svix",
        package="svix",
        verifies=_svix_verifies,
        signs=_svix_signs,
        keys=whsec,
        request=WITH_SVIX_ID,
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="resend",
        package="resend",
        verifies=_resend_verifies,
        keys=whsec,
        request=WITH_SVIX_ID,
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="lithic",
        package="lithic",
        verifies=_lithic_verifies,
        keys=whsec,
        request=WITH_ID,
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="polar",
        package="polar-sdk",
        module="polar",
        verifies=_polar_verifies,
        keys=text,
        request=WITH_ID,
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="openai",
        package="openai",
        verifies=_openai_verifies,
        keys=whsec,
        request=WITH_ID,
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="replicate",
        package="replicate",
        verifies=_replicate_verifies,
        keys=whsec,
        request=WITH_ID,
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="finch",
        package="finch-api",
        module="finch",
        verifies=_finch_verifies,
        keys=base64_text,
        request=PLAIN.adding(Finch_Event_Id="evt_7Rk2"),
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="hook0",
        package="hook0-client",
        module="hook0",
        verifies=_hook0_verifies,
        request=HOOK0_REQUEST,
        stale_seconds=TOO_OLD,
    ),
    Oracle(
        preset="hmac",
        package="convoy-python",
        module="convoy",
        verifies=_convoy_verifies,
        signs=_convoy_signs,
        request=PLAIN.adding(X_Event_Id="evt_7Rk2"),
    ),
)
