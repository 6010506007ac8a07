"""Libraries from npm, all asked by one process of Node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any, Final

from oracles.keys import ed25519_hex, whsec
from oracles.oracle import PLAIN, Oracle, Request, of_json, swapping
from oracles.pypi.development import SNS_REQUEST, sns_keys
from oracles.pypi.payments import PAYMENT, another_payment
from oracles.pypi.standard import HOOK0_REQUEST, TOO_OLD, WITH_SVIX_ID

HERE: Final = Path(__file__).parent
MODULES: Final = HERE / "node_modules"


def is_installed(package: str) -> bool:
    """Whether Node and the package are there."""
    return which("node") is not None and (MODULES / package).is_dir()


@cache
def node() -> subprocess.Popen[str]:
    """The process that answers for all libraries."""
    command = [which("node") or "node", str(HERE / "check.mjs")]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )


def close() -> None:
    """End the process, where one was started."""
    if node.cache_info().currsize:
        node().communicate()
        node.cache_clear()


def _ask(name: str, action: str, request: Request, secret: str) -> dict[str, Any]:
    sent = asdict(request) | {"headers": dict(request.headers), "body": request.text}
    question = {"name": name, "action": action, "secret": secret, "request": sent}
    asked = node()
    assert asked.stdin is not None
    assert asked.stdout is not None
    print(json.dumps(question), file=asked.stdin, flush=True)
    answer: dict[str, Any] = json.loads(asked.stdout.readline())
    return answer


def _verifies(name: str) -> Callable[[Request, str], bool]:
    def verifies(request: Request, secret: str) -> bool:
        answer = _ask(name, "verifies", request, secret)
        if "error" in answer:
            raise ValueError(answer["error"])
        return bool(answer["accepted"])

    return verifies


def _signs(name: str) -> Callable[[Request, str], Request]:
    def signs(request: Request, secret: str) -> Request:
        verifies = _ask(name, "signs", request, secret)["headers"]
        return replace(request, headers={**request.headers, **verifies})

    return signs


def _oracle(preset: str, package: str, *, asked: str = "", **more: Any) -> Oracle:
    verifies = _verifies(asked or preset)
    return Oracle(preset=preset, package=package, verifies=verifies, is_npm=True, **more)


_SHOPIFY: Final = PLAIN.adding(
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
_LINEAR: Final = of_json(
    {"type": "Issue", "action": "create", "webhookTimestamp": 0, "data": "Zoë"}
)
_PAID: Final = swapping("order.paid", "order.lost")

ORACLES: Final = (
    _oracle("github", "@octokit/webhooks-methods", scheme="sha256", signs=_signs("github")),
    _oracle("shopify", "@shopify/shopify-api", request=_SHOPIFY),
    _oracle("linear", "@linear/sdk", request=_LINEAR, stale_seconds=120),
    _oracle(
        "contentful",
        "@contentful/node-apps-toolkit",
        request=PLAIN.adding(X_Contentful_Topic="ContentManagement.Entry.publish"),
        signs=_signs("contentful"),
        stale_seconds=90,
    ),
    _oracle("webflow", "webflow-api"),
    _oracle("hookdeck", "@hookdeck/sdk"),
    _oracle("notion", "@notionhq/client", signs=_signs("notion")),
    _oracle(
        "zoom",
        "@zoom/rivet",
        request=of_json(_MEETING),
        altered=swapping("meeting.started", "meeting.ended"),
    ),
    _oracle("clerk", "@clerk/backend", request=WITH_SVIX_ID, keys=whsec, stale_seconds=TOO_OLD),
    _oracle(
        "lemonsqueezy",
        "lemonsqueezy-webhooks",
        request=of_json({"meta": {"event_name": "order_created"}, "data": {"id": "Zoë"}}),
    ),
    _oracle("woocommerce", "@hookflo/tern"),
    _oracle("sentry", "@hookflo/tern", altered=_PAID),
    _oracle("bitbucket", "nuxt-webhook-validators"),
    _oracle("docusign", "nuxt-webhook-validators"),
    _oracle("vercel", "nuxt-webhook-validators"),
    _oracle("gitlab", "nuxt-webhook-validators", scheme="static-token", altered=None),
    _oracle(
        "aws-sns",
        "sns-validator",
        asked="sns",
        scheme="version-2",
        keys=sns_keys,
        request=SNS_REQUEST,
        altered=swapping(" paid", " left"),
    ),
    _oracle("mailersend", "mailersend"),
    _oracle("mercadopago", "mercadopago", request=PAYMENT, altered=another_payment),
    _oracle("hook0", "hook0-client", request=HOOK0_REQUEST, stale_seconds=TOO_OLD),
    _oracle(
        "messagebird",
        "messagebird",
        stale_seconds=420,
    ),
    _oracle("discord", "discord-interactions", keys=ed25519_hex),
)
