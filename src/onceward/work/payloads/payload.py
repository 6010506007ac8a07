"""Decodes the body of an event. Onceward's error messages name the field and quote no value."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from onceward.errors import MalformedPayload
from onceward.model.events import INGEST_SOURCE
from onceward.sources.forms import MAX_FIELDS, urlencoded_fields
from onceward.sources.json_text import decode_json, is_too_deep
from onceward.work.payloads.decoders.decoder import Content, Decoder
from onceward.work.payloads.decoders.faults import malformed
from onceward.work.payloads.decoders.msgspec_decoder import (
    UNCHECKED,
    ExactDecoder,
    MsgspecDecoder,
    TerseDecoder,
)

FORM: Final = "application/x-www-form-urlencoded"
UNDECODABLE: Final = object()
"""Stands for the payload of a body that cannot be decoded."""


class _Envelope(msgspec.Struct):
    payload: msgspec.Raw


_ENVELOPE: Final = MsgspecDecoder(_Envelope)
_TERSE: Final = TerseDecoder()
_EXACT: Final = ExactDecoder()
_RAW_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_HEADERS: Final = msgspec.json.Decoder(dict[str, str])


def decode(
    body: bytes, decoder: Decoder = UNCHECKED, *, enveloped: bool = False, content_type: str = ""
) -> Any:
    """Decode a body with the decoder of its model. Raise MalformedPayload.

    An `enveloped` body comes from ``POST /events/ingest``: only its member ``payload`` is decoded.
    The fields of a form are strings.
    """
    return _decode(body, decoder, content_type, enveloped=enveloped)


def decode_without_reason(body: bytes, *, enveloped: bool, content_type: str) -> Any:
    """Decode a body as `decode` does without a model, for callers that ignore the fault.

    Raise MalformedPayload without the reason: the search for it is slow.
    """
    return _decode(body, _TERSE, content_type, enveloped=enveloped)


def read_document(source: str, headers: bytes, body: bytes) -> Any:
    """Return the payload of an event as a handler without a model gets it. Never raises.

    Return UNDECODABLE if the handler would get none.
    """
    try:
        return decode_without_reason(
            body, enveloped=source == INGEST_SOURCE, content_type=content_type_of(headers)
        )
    except (MalformedPayload, ValueError):  # ValueError: the stored headers were altered
        return UNDECODABLE


def decode_exactly(body: bytes, *, enveloped: bool, content_type: str) -> Any:
    """Decode a body as `decode` does without a model, with a Decimal for each float.

    Raise MalformedPayload.
    """
    try:
        return _decode(body, _EXACT, content_type, enveloped=enveloped)
    except MalformedPayload:
        return decode(body, enveloped=enveloped, content_type=content_type)  # finds the reason


def decode_headers(headers: bytes) -> dict[str, str]:
    """Return the stored headers of an event, by their lower-case names."""
    return _HEADERS.decode(headers)


def content_type_of(headers: bytes) -> str:
    """Return the content type in the stored headers of an event; an empty text without one."""
    return decode_headers(headers).get("content-type", "")


def raw_json(body: bytes, *, enveloped: bool, content_type: str) -> msgspec.Raw | None:
    """Return the payload of a body as it was received; None if it is not JSON within limits."""
    if _is_form(body, content_type):
        return None
    try:
        payload = _payload_of(body) if enveloped else msgspec.Raw(body)
        decode_json(bytes(payload))  # msgspec looks only at the syntax of a raw value
    except (MalformedPayload, ValueError):
        return None
    return payload


def _is_form(body: bytes, content_type: str) -> bool:
    return content_type.startswith(FORM) and not body.lstrip().startswith((b"{", b"["))


def _decode(body: bytes, decoder: Decoder, content_type: str, *, enveloped: bool) -> Any:
    if _is_form(body, content_type):
        return decoder.decode_form(_form_fields(body))
    content: Content = _payload_of(body) if enveloped else body
    return decoder.decode_json(content)


def _payload_of(body: bytes) -> msgspec.Raw:
    """Return the payload in an envelope. Raise MalformedPayload."""
    if not is_too_deep(body):
        with suppress(ValueError):
            return _RAW_ENVELOPE.decode(body).payload
    found: _Envelope = _ENVELOPE.decode_json(body)  # raises the reason
    return found.payload


def _form_fields(body: bytes) -> dict[str, str]:
    try:
        fields = urlencoded_fields(body.decode())
    except UnicodeDecodeError:
        raise malformed("not a form") from None
    if fields is None:
        raise malformed(f"a form of more than {MAX_FIELDS:,} fields, or with invalid escapes")
    return dict(fields)
