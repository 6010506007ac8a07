"""Verifiers from npm, all run by one Node process."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any, Final

from oracles.keys import ed25519_hex, whsec_secret
from oracles.pypi.development import SNS_REQUEST, sns_keys
from oracles.pypi.payments import PAYMENT, change_payment_id
from oracles.pypi.standard import HOOK0_REQUEST, STALE_SECONDS, WITH_SVIX_ID
from oracles.verifier import PLAIN_REQUEST, Request, Sign, Verifier, Verify, json_request, replacing

HERE: Final = Path(__file__).parent
MODULES: Final = HERE / "node_modules"


def is_installed(package: str) -> bool:
    """Return whether Node and the package are installed."""
    return which("node") is not None and (MODULES / package).is_dir()


@cache
def _node() -> subprocess.Popen[str]:
    command = [which("node") or "node", str(HERE / "check.mjs")]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )


def close() -> None:
    """Stop the Node process, if it was started."""
    if _node.cache_info().currsize:
        _node().communicate()
        _node.cache_clear()


def _call(name: str, action: str, request: Request, secret: str) -> dict[str, Any]:
    """Have check.mjs verify or sign a request, and return its result."""
    fields = asdict(request) | {"headers": dict(request.headers), "body": request.text}
    call = {"name": name, "action": action, "secret": secret, "request": fields}
    node = _node()
    assert node.stdin is not None
    assert node.stdout is not None
    print(json.dumps(call), file=node.stdin, flush=True)
    result: dict[str, Any] = json.loads(node.stdout.readline())
    return result


def _verify_with(name: str) -> Verify:
    def verify(request: Request, secret: str) -> bool:
        result = _call(name, "verify", request, secret)
        if "error" in result:
            raise ValueError(result["error"])
        return bool(result["accepted"])

    return verify


def _sign_with(name: str) -> Sign:
    def sign(request: Request, secret: str) -> Request:
        proof = _call(name, "sign", request, secret)["headers"]
        return replace(request, headers={**request.headers, **proof})

    return sign


def _verifier(preset: str, package: str, **options: Any) -> Verifier:
    verify = _verify_with(preset)
    return Verifier(preset=preset, package=package, verify=verify, is_npm=True, **options)


_SHOPIFY: Final = PLAIN_REQUEST.with_headers(
    X_Shopify_Topic="orders/paid",
    X_Shopify_Shop_Domain="a-shop.example",
    X_Shopify_API_Version="2026-01",
    X_Shopify_Webhook_Id="b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
    X_Shopify_Event_Id="98880550-7158-44d4-b7cd-2c97c8a091b5",
)
_MEETING: Final = {
    "event": "meeting.started",
    "event_ts": 1,
    "payload": {"object": {"topic": "Zoë"}},
}
_LINEAR: Final = json_request(
    {"type": "Issue", "action": "create", "webhookTimestamp": 0, "data": "Zoë"}
)
_CHANGE_TYPE: Final = replacing("order.paid", "order.lost")

VERIFIERS: Final = (
    _verifier("github", "@octokit/webhooks-methods", scheme="sha256", sign=_sign_with("github")),
    _verifier("shopify", "@shopify/shopify-api", request=_SHOPIFY),
    _verifier("linear", "@linear/sdk", request=_LINEAR, stale_seconds=120),
    _verifier(
        "contentful",
        "@contentful/node-apps-toolkit",
        request=PLAIN_REQUEST.with_headers(X_Contentful_Topic="ContentManagement.Entry.publish"),
        sign=_sign_with("contentful"),
        stale_seconds=90,
    ),
    _verifier("webflow", "webflow-api"),
    _verifier("hookdeck", "@hookdeck/sdk"),
    _verifier("notion", "@notionhq/client", sign=_sign_with("notion")),
    _verifier(
        "zoom",
        "@zoom/rivet",
        request=json_request(_MEETING),
        tamper=replacing("meeting.started", "meeting.ended"),
    ),
    _verifier(
        "clerk",
        "@clerk/backend",
        request=WITH_SVIX_ID,
        make_keys=whsec_secret,
        stale_seconds=STALE_SECONDS,
    ),
    _verifier(
        "lemonsqueezy",
        "lemonsqueezy-webhooks",
        request=json_request({"meta": {"event_name": "order_created"}, "data": {"id": "Zoë"}}),
    ),
    _verifier("woocommerce", "@hookflo/tern"),
    _verifier("sentry", "@hookflo/tern", tamper=_CHANGE_TYPE),
    _verifier("bitbucket", "nuxt-webhook-validators"),
    _verifier("docusign", "nuxt-webhook-validators"),
    _verifier("vercel", "nuxt-webhook-validators"),
    _verifier("gitlab", "nuxt-webhook-validators", scheme="static-token", tamper=None),
    _verifier(
        "aws-sns",
        "sns-validator",
        scheme="version-2",
        make_keys=sns_keys,
        request=SNS_REQUEST,
        tamper=replacing(" paid", " left"),
    ),
    _verifier("mailersend", "mailersend"),
    _verifier("mercadopago", "mercadopago", request=PAYMENT, tamper=change_payment_id),
    _verifier("hook0", "hook0-client", request=HOOK0_REQUEST, stale_seconds=STALE_SECONDS),
    _verifier("messagebird", "messagebird", stale_seconds=420),
    _verifier("discord", "discord-interactions", make_keys=ed25519_hex),
)
