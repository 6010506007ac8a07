"""The official library of Standard Webhooks accepts forwarded events, with each of the secrets."""

import base64
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from onceward import Event
from onceward.work.forwarding.message import envelope, message_id, signed_headers

SECRETS = [
    f"whsec_{base64.b64encode(text).decode()}"
    for text in (b"the secret of today, long", b"the secret of yesterday ..")
]


@pytest.fixture
def event() -> Event[Any]:
    return Event(
        id="evt.1",
        source="stripe",
        type="invoice.paid",
        reference=None,
        received_at=datetime.now(UTC),
        body='{"name": "Zoë", "amount": 1.10}'.encode(),
        headers={},
        _decode=lambda: None,
    )


@pytest.mark.parametrize("secret", SECRETS)
def test_the_library_accepts_a_forwarded_event(event: Event[Any], secret: str) -> None:
    webhooks: Any = pytest.importorskip("standardwebhooks")
    body = envelope(event)
    headers = signed_headers(SECRETS, message_id("billing", event), body, time.time())
    webhook = webhooks.Webhook(secret)
    assert webhook.verify(body, headers) == json.loads(body)
    with pytest.raises(webhooks.WebhookVerificationError):
        webhook.verify(body.replace(b"1.10", b"9.10"), headers)
    with pytest.raises(webhooks.WebhookVerificationError):
        webhook.verify(body, {**headers, "webhook-id": "fwd_0"})
