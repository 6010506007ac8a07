"""Forwarded events as messages of Standard Webhooks: id, signed time and a JSON envelope.

The signature covers the id, the time and the body. So everything about the event is in the body.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from onceward.model.events import INGEST_SOURCE, Event
from onceward.runtime.value_kind import kind_of
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.standard import V1
from onceward.version import __version__
from onceward.work.payloads.payload import raw_json

MIN_SECRET_BYTES: Final = 24
"""The shortest secret that Standard Webhooks recommends."""
_PREFIX: Final = "whsec_"
_KEY_PREFIXES: Final = ("whsk_", "whpk_")
_ID, _SIGNATURE = "webhook-id", "webhook-signature"
_ID_DIGITS: Final = 24
"""Hexadecimal digits of a message id. With more, error texts would redact it as a secret."""
_CONTENT_TYPE: Final = "content-type"


class _Data(msgspec.Struct, omit_defaults=True):
    """The event: its identity, and the payload as it was received."""

    key: str
    source: str
    id: str
    reference: str | msgspec.UnsetType | None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    content_type: str | msgspec.UnsetType = msgspec.UNSET


class _Envelope(msgspec.Struct):
    type: str
    timestamp: datetime
    data: _Data


def message_id(forward: str, event: Event[Any]) -> str:
    """Return the id of an event's message: the same for every attempt of a forward.

    Standard Webhooks joins it with dots, so it contains none.
    """
    identity = f"{forward}\0{event.source}\0{event.id}"
    return f"fwd_{hashlib.sha256(identity.encode()).hexdigest()[:_ID_DIGITS]}"


def envelope(event: Event[Any]) -> bytes:
    """Return the body of an event's message. The payload is the JSON that was received.

    A body that is not JSON is sent in base64, with its content type.
    """
    content_type = event.headers.get(_CONTENT_TYPE, "")
    payload = raw_json(
        event.body, enveloped=event.source == INGEST_SOURCE, content_type=content_type
    )
    data = _Data(key=event.key, source=event.source, id=event.id, reference=event.reference)
    if payload is not None:
        data.payload = payload
    else:
        data.body_base64 = base64.b64encode(event.body).decode()
        data.content_type = content_type
    timestamp = event.received_at.astimezone(UTC)
    return msgspec.json.encode(_Envelope(event.type, timestamp, data))


def signed_headers(
    secrets: Sequence[str], identifier: str, body: bytes, now: float
) -> dict[str, str]:
    """Return the headers of a message, with a signature by each secret."""
    signatures = []
    headers: dict[str, str] = {}
    for secret in secrets:
        outgoing = OutgoingRequest({_ID: identifier}, body)
        V1.sign(secret, outgoing, now)
        headers = outgoing.headers
        signatures.append(headers[_SIGNATURE])
    return {
        **headers,
        _SIGNATURE: " ".join(signatures),
        _CONTENT_TYPE: "application/json",
        "user-agent": f"Onceward/{__version__}",
    }


def secret_faults(secret: object) -> Iterator[str]:
    """Yield why one or more secrets cannot sign. The faults never quote a secret."""
    secrets = [secret] if isinstance(secret, str) else secret
    if not isinstance(secrets, list | tuple):
        hint = ": is its environment variable set? It must be" if secret is None else "; use"
        yield f"secret is {kind_of(secret)}{hint} a text that begins with {_PREFIX}"
        return
    if not secrets:
        yield "secret is an empty list; add a secret, as receivers verify the signature"
    for number, each in enumerate(secrets, 1):
        if fault := _secret_fault(each):
            name = "secret" if isinstance(secret, str) else f"secret {number}"
            yield f"{name} {fault}"


def _secret_fault(secret: object) -> str | None:
    if not isinstance(secret, str):
        return f"is {kind_of(secret)}; use a text that begins with {_PREFIX}"
    if not secret.startswith(_PREFIX):
        return _prefix_fault(secret)
    try:
        size = len(base64.b64decode(secret.removeprefix(_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        return f"is not base64 after {_PREFIX}; was it copied in full?"
    if size < MIN_SECRET_BYTES:
        return f"has {size} bytes; use at least {MIN_SECRET_BYTES} random ones"
    return None


def _prefix_fault(secret: str) -> str:
    if not secret:
        return "is empty; is the environment variable set?"
    if secret.startswith(_KEY_PREFIXES):
        return f"is a key for asymmetric signatures; use a secret that begins with {_PREFIX}"
    return (
        f"does not begin with {_PREFIX}; use {_PREFIX} and at least {MIN_SECRET_BYTES} random "
        "bytes in base64"
    )
