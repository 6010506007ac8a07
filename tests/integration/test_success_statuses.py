"""202 means recorded, 200 processed; a provider that requires 200 gets it with the same body."""

import hmac
import json
from typing import Any

import httpx
import pytest

from onceward import Event, Inbox
from onceward.sources.presets import PRESETS
from tests.inprocess import RunningInbox, receive_only

SECRET = "a-long-secret"
INLINE = {"mode": "inline"}
RECORDED = "Recorded, and not processed in this request"
PROCESSED = "Processed: the handlers of the inline source ran"


def shop_inbox(preset: str, **options: Any) -> Inbox:
    inbox = Inbox()
    inbox.source("shop", preset=preset, secrets=[SECRET], **options)

    @inbox.on("*", source="shop")
    async def handle(event: Event[Any]) -> None:
        """Do nothing."""

    return inbox


async def deliver(bench: RunningInbox, preset: str, body: bytes | None = None) -> httpx.Response:
    """Send an event as a provider does: Paystack requires 200, a partner of your own does not."""
    body = body or json.dumps({"event": "paid", "type": "paid", "data": {"id": 7}}).encode()
    digest = "sha512" if preset == "paystack" else "sha256"
    signature = hmac.new(SECRET.encode(), body, digest).hexdigest()
    header = "x-paystack-signature" if preset == "paystack" else "x-signature"
    headers = {header: signature, "x-event-id": "7", "content-type": "application/json"}
    return await bench.deliver("/webhooks/shop", body, headers)


async def responses(bench: RunningInbox) -> dict[str, Any]:
    """Return the documented responses to a webhook."""
    document = (await bench._http.get("/openapi.json")).json()
    found: dict[str, Any] = document["paths"]["/webhooks/{source}"]["post"]["responses"]
    return found


async def test_a_provider_that_requires_200_gets_it_with_the_same_body(sqlite_url: str) -> None:
    answers = {}
    for preset in ("hmac", "paystack"):
        async with receive_only(shop_inbox(preset), f"{sqlite_url}.{preset}") as bench:
            answers[preset] = [await deliver(bench, preset) for _ in range(2)]
            documented = await responses(bench)
            status = 200 if preset == "paystack" else 202
            assert documented[str(status)]["description"].startswith(RECORDED)
            assert str(402 - status) not in documented
    assert [answer.status_code for answer in answers["hmac"]] == [202, 202]
    assert [answer.status_code for answer in answers["paystack"]] == [200, 200]
    for own, provider in zip(answers["hmac"], answers["paystack"], strict=True):
        event_id = {"event_id": provider.json()["event_id"]}
        assert own.json() | event_id == provider.json()


@pytest.mark.parametrize("preset", ["hmac", "paystack"])
async def test_an_inline_source_says_200_only_if_it_processed(sqlite_url: str, preset: str) -> None:
    async with receive_only(shop_inbox(preset, **INLINE), sqlite_url) as bench:
        answers = [await deliver(bench, preset) for _ in range(2)]
        changed = b'{"event": "paid", "type": "paid", "data": {"id": 7}, "more": 1}'
        conflict = await deliver(bench, preset, changed)
        description = (await responses(bench))["200"]["description"]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["status"] for answer in answers] == ["processed", "already_processed"]
    assert conflict.status_code == (200 if preset == "paystack" else 202)
    assert (conflict.json()["accepted"], conflict.json()["conflict"]) == (True, True)
    assert description.startswith(PROCESSED)
    assert ("The provider requires this status: shop." in description) is (preset == "paystack")


async def test_a_reply_of_the_provider_means_both(sqlite_url: str) -> None:
    inbox = shop_inbox("hmac", **INLINE)
    inbox.source("discord", secrets=["5f1c" * 16])
    async with receive_only(inbox, sqlite_url) as bench:
        documented = await responses(bench)
    assert documented["200"]["description"].startswith(PROCESSED)
    assert documented["202"]["description"].startswith(RECORDED)
    assert documented["204"]["description"].startswith(RECORDED)
    assert documented["204"]["description"].endswith("requires this status: discord.")


def test_presets_require_a_status_of_success() -> None:
    for preset in PRESETS.values():
        reply = preset.success_response
        assert (reply if isinstance(reply, int) else reply.status) in (200, 202, 204)
