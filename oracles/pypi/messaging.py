"""Email, messages, calls, chat."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from oracles.keys import base64_secret, ed25519_base64, ed25519_hex, p256_der, user_and_password
from oracles.pypi.tokens import VALID_SECONDS, body_hash
from oracles.verifier import (
    FORM,
    PLAIN_REQUEST,
    Request,
    Sign,
    Verifier,
    Verify,
    json_request,
    replacing,
)

_EXPIRED_SECONDS: Final = VALID_SECONDS + 120


def _verify_slack(request: Request, secret: str) -> bool:
    from slack_sdk.signature import SignatureVerifier

    return SignatureVerifier(secret).is_valid_request(request.body, request.headers)


def _sign_slack(request: Request, secret: str) -> Request:
    from slack_sdk.signature import SignatureVerifier

    now = str(int(time.time()))
    signature = SignatureVerifier(secret).generate_signature(timestamp=now, body=request.body)
    return request.with_headers(X_Slack_Request_Timestamp=now, X_Slack_Signature=signature)


def _verify_discord(request: Request, secret: str) -> bool:
    from discord_interactions import verify_key

    signature = request.header("X-Signature-Ed25519")
    return verify_key(request.body, signature, request.header("X-Signature-Timestamp"), secret)


def _verify_telegram(request: Request, secret: str) -> bool:
    from telegram.ext._utils.webhookhandler import TelegramHandler
    from tornado.httputil import HTTPHeaders

    sent = SimpleNamespace(headers=HTTPHeaders(request.headers))
    TelegramHandler._validate_post(SimpleNamespace(request=sent, secret_token=secret))
    return True


def _verify_line(request: Request, secret: str) -> bool:
    from linebot.v3.webhook import SignatureValidator

    return SignatureValidator(secret).validate(request.text, request.header("x-line-signature"))


def _twilio_params(request: Request) -> dict[str, str] | str:
    is_form = request.header("Content-Type") == FORM
    return dict(parse_qsl(request.text, keep_blank_values=True)) if is_form else request.text


def _verify_twilio(algorithm: str) -> Verify:
    def verify(request: Request, secret: str) -> bool:
        from twilio.request_validator import RequestValidator

        signature = request.header("X-Twilio-Signature")
        params = _twilio_params(request)
        return RequestValidator(secret).validate(request.url, params, signature, algorithm)

    return verify


def _sign_twilio(algorithm: str) -> Sign:
    def sign(request: Request, secret: str) -> Request:
        from twilio.request_validator import RequestValidator

        validator, params = RequestValidator(secret), _twilio_params(request)
        if isinstance(params, str):
            url = f"{request.url}?bodySHA256={validator.compute_hash(params)}"
            request, params = replace(request, url=url), {}
        signature = validator.compute_signature(request.url, params, algorithm)
        return request.with_headers(X_Twilio_Signature=signature)

    return sign


def _verify_sendgrid(request: Request, secret: str) -> bool:
    from sendgrid.helpers.eventwebhook import EventWebhook, EventWebhookHeader

    signature = request.header(EventWebhookHeader.SIGNATURE)
    timestamp = request.header(EventWebhookHeader.TIMESTAMP)
    return EventWebhook(secret).verify_signature(request.text, signature, timestamp)


def _verify_mailgun(request: Request, secret: str) -> bool:
    from mailgun.security import SecurityGuard

    sent = request.document["signature"]
    return SecurityGuard.verify_webhook(secret, sent["token"], sent["timestamp"], sent["signature"])


@cache
def _configure_django() -> None:
    import django
    from django.conf import settings

    settings.configure(ALLOWED_HOSTS=["*"], DEFAULT_CHARSET="utf-8", SECRET_KEY="none")
    django.setup()


def _anymail_request(request: Request) -> Any:
    _configure_django()
    from django.test import RequestFactory

    parts = urlsplit(request.url)
    return RequestFactory().post(
        parts.path,
        data=request.body,
        content_type=request.header("Content-Type"),
        secure=True,
        headers={**request.lower_headers, "host": parts.netloc},
    )


def _verify_mandrill(request: Request, secret: str) -> bool:
    sent = _anymail_request(request)
    from anymail.webhooks.mandrill import MandrillCombinedWebhookView

    MandrillCombinedWebhookView(webhook_key=secret, webhook_url=request.url).run_validators(sent)
    return True


def _verify_mailersend(request: Request, secret: str) -> bool:
    sent = _anymail_request(request)
    from anymail.webhooks.mailersend import MailerSendTrackingWebhookView

    MailerSendTrackingWebhookView(signing_secret=secret).run_validators(sent)
    return True


def _verify_postmark(request: Request, secret: str) -> bool:
    sent = _anymail_request(request)
    from anymail.webhooks.postmark import PostmarkTrackingWebhookView

    PostmarkTrackingWebhookView(webhook_secret=secret).run_validators(sent)
    return True


def _verify_meta(request: Request, secret: str) -> bool:
    from pywa.utils import webhook_updates_validator

    return webhook_updates_validator(secret, request.body, request.header("X-Hub-Signature-256"))


def _viber(secret: str) -> Any:
    from viberbot import Api, BotConfiguration

    return Api(BotConfiguration(auth_token=secret, name="none", avatar="none"))


def _verify_viber(request: Request, secret: str) -> bool:
    signature = request.header("X-Viber-Content-Signature")
    return _viber(secret).verify_signature(request.body, signature)


def _sign_viber(request: Request, secret: str) -> Request:
    signature = _viber(secret)._calculate_message_signature(request.body)
    return request.with_headers(X_Viber_Content_Signature=signature)


def _verify_telnyx(request: Request, secret: str) -> bool:
    from telnyx.lib.webhook_verification import verify_webhook_signature

    verify_webhook_signature(request.body, request.headers, secret)
    return True


def sign_messagebird(
    request: Request, secret: str, *, algorithm: str = "HS256", without: str = ""
) -> Request:
    """Return the request with a documented MessageBird token, optionally without one claim."""
    import jwt

    now = int(time.time())
    claims = {
        "iss": "MessageBird",
        "iat": now,
        "nbf": now,
        "exp": now + VALID_SECONDS,
        "jti": "7d1bc0e2",
        "url_hash": hashlib.sha256(request.url.encode()).hexdigest(),
        "payload_hash": body_hash(request),
    }
    claims.pop(without, None)
    return request.with_headers(MessageBird_Signature_JWT=jwt.encode(claims, secret, algorithm))


def _verify_messagebird(request: Request, secret: str) -> bool:
    from messagebird.request_validator import RequestValidator

    token = request.header("MessageBird-Signature-JWT")
    RequestValidator(secret).validate_signature(token, request.url, request.body)
    return True


def _verify_vonage(request: Request, secret: str) -> bool:
    from vonage_jwt import verify_signature

    return verify_signature(request.header("Authorization").removeprefix("Bearer "), secret)


def _verify_pusher(request: Request, secret: str) -> bool:
    from pusher import Pusher

    client = Pusher(app_id="1", key="a-key", secret=secret)
    signature = request.header("X-Pusher-Signature")
    payload = client.validate_webhook(request.header("X-Pusher-Key"), signature, request.body)
    return payload is not None


def _sign_pusher(request: Request, secret: str) -> Request:
    from pusher.signature import sign

    return request.with_headers(X_Pusher_Signature=sign(secret, request.text))


def _pusher_request() -> Request:
    events = [{"name": "channel_occupied", "channel": "Zoë"}]
    document = {"time_ms": int(time.time() * 1000), "events": events}
    return json_request(document, X_Pusher_Key="a-key")


def _verify_twitch(request: Request, secret: str) -> bool:
    from twitchAPI.eventsub.webhook import EventSubWebhook

    async def read() -> str:
        return request.text

    names = ("Signature", "Id", "Timestamp")
    headers = {
        key: request.header(key) for key in (f"Twitch-Eventsub-Message-{name}" for name in names)
    }
    sent, hook = SimpleNamespace(headers=headers, text=read), SimpleNamespace(secret=secret)
    return asyncio.run(EventSubWebhook._verify_signature(hook, sent))


def _verify_sinch(request: Request, secret: str) -> bool:
    from sinch.core.internal.sinch_events.authorization_helpers import (
        validate_authentication_header,
    )

    return validate_authentication_header(
        key="onceward",
        secret=secret,
        headers=dict(request.headers),
        body=request.body,
        path=urlsplit(request.url).path,
        method=request.method,
    )


def _sign_sinch(request: Request, secret: str) -> Request:
    from sinch.core.internal.sinch_events import utils

    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    content = utils.build_string_to_sign(
        request.method,
        utils.compute_content_md5(request.body),
        request.header("Content-Type"),
        now,
        urlsplit(request.url).path,
    )
    signature = utils.compute_signature(content, secret)
    return request.with_headers(x_timestamp=now, Authorization=f"service onceward:{signature}")


_CALL: Final = Request(
    headers={"Content-Type": FORM},
    body=urlencode(
        {"MessageSid": "SM1", "Body": "Grüße & Küsse €", "To": "+41", "Empty": ""}
    ).encode(),
    url="https://inbox.example/webhooks/twilio?a=1&b=%20c",
)
_MAIL_EVENTS: Final = Request(
    headers={"Content-Type": FORM},
    body=urlencode({"mandrill_events": '[{"event":"send","_id":"Zoë"}]'}).encode(),
)

VERIFIERS: Final = (
    Verifier(
        preset="slack",
        package="slack_sdk",
        verify=_verify_slack,
        sign=_sign_slack,
        stale_seconds=360,
    ),
    Verifier(
        preset="discord",
        package="discord-interactions",
        module="discord_interactions",
        verify=_verify_discord,
        make_keys=ed25519_hex,
    ),
    Verifier(
        preset="telegram",
        package="python-telegram-bot",
        module="telegram",
        verify=_verify_telegram,
        tamper=None,
    ),
    Verifier(preset="line", package="line-bot-sdk", module="linebot", verify=_verify_line),
    Verifier(
        preset="twilio",
        scheme="sha1",
        package="twilio",
        verify=_verify_twilio("HMAC_SHA1"),
        sign=_sign_twilio("HMAC_SHA1"),
        request=_CALL,
        tamper=replacing("%2B41", "%2B42"),
    ),
    Verifier(
        preset="twilio",
        scheme="sha256",
        package="twilio",
        verify=_verify_twilio("HMAC_SHA256"),
        sign=_sign_twilio("HMAC_SHA256"),
    ),
    Verifier(
        preset="sendgrid",
        package="sendgrid",
        verify=_verify_sendgrid,
        make_keys=p256_der,
        request=json_request([{"sg_event_id": "a", "event": "open", "email": "zoë@a.example"}]),
    ),
    Verifier(
        preset="mailgun",
        package="mailgun",
        verify=_verify_mailgun,
        request=json_request(
            {"signature": {"token": "a8ce0edb2dd8301d"}, "event-data": {"id": "1"}}
        ),
        tamper=replacing("a8ce0edb", "a8ce0edc"),
        stale_seconds=960,
    ),
    Verifier(
        preset="mandrill",
        package="django-anymail",
        module="anymail",
        verify=_verify_mandrill,
        request=_MAIL_EVENTS,
        tamper=replacing("send", "open"),
    ),
    Verifier(
        preset="mailersend",
        package="django-anymail",
        module="anymail",
        verify=_verify_mailersend,
    ),
    Verifier(
        preset="postmark",
        package="django-anymail",
        module="anymail",
        verify=_verify_postmark,
        make_keys=user_and_password,
        tamper=None,
    ),
    Verifier(preset="meta", scheme="sha256", package="pywa", verify=_verify_meta),
    Verifier(preset="viber", package="viberbot", verify=_verify_viber, sign=_sign_viber),
    Verifier(
        preset="telnyx",
        package="telnyx",
        verify=_verify_telnyx,
        make_keys=ed25519_base64,
        stale_seconds=360,
    ),
    Verifier(
        preset="messagebird",
        package="messagebird",
        verify=_verify_messagebird,
        stale_seconds=_EXPIRED_SECONDS,
    ),
    Verifier(
        preset="vonage",
        package="vonage-jwt",
        module="vonage_jwt",
        verify=_verify_vonage,
        scope="the token, not the body",
        tamper=None,
        stale_seconds=_EXPIRED_SECONDS,
    ),
    Verifier(
        preset="pusher",
        package="pusher",
        verify=_verify_pusher,
        sign=_sign_pusher,
        request=_pusher_request(),
        stale_seconds=360,
    ),
    Verifier(
        preset="twitch",
        package="twitchAPI",
        verify=_verify_twitch,
        request=PLAIN_REQUEST.with_headers(Twitch_Eventsub_Message_Id="e76c6bd4"),
    ),
    Verifier(
        preset="sinch",
        package="sinch",
        verify=_verify_sinch,
        sign=_sign_sinch,
        make_keys=base64_secret,
    ),
)
