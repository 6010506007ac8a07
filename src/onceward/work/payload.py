"""Decodes the body of an event. Onceward's error messages name the field and quote no value."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from onceward.errors import MalformedPayload
from onceward.work.decoders.decoder import Content, Decoder
from onceward.work.decoders.faults import malformed
from onceward.work.decoders.msgspec_decoder import UNCHECKED, MsgspecDecoder, TerseDecoder

FORM: Final = "application/x-www-form-urlencoded"


class _Envelope(msgspec.Struct):
    payload: msgspec.Raw


_ENVELOPE: Final = MsgspecDecoder(_Envelope)
_TERSE_ENVELOPE: Final = TerseDecoder(_Envelope)
_TERSE: Final = TerseDecoder(Any)
_EXACT: Final = TerseDecoder(Any, float_hook=Decimal)
_HEADERS: Final = msgspec.json.Decoder(dict[str, str])


def decode(
    body: bytes, decoder: Decoder = UNCHECKED, *, enveloped: bool = False, content_type: str = ""
) -> Any:
    """Decode a body with the decoder of its model. Raise MalformedPayload.

    An `enveloped` body comes from ``POST /events/ingest``: only its member ``payload`` is decoded.
    The fields of a form are strings.
    """
    return _decode(body, decoder, _ENVELOPE if enveloped else None, content_type)


def decode_without_reason(body: bytes, *, enveloped: bool, content_type: str) -> Any:
    """Decode a body as `decode` does without a model, for callers that ignore the fault.

    Raise MalformedPayload without the reason: the search for it is slow.
    """
    return _decode(body, _TERSE, _TERSE_ENVELOPE if enveloped else None, content_type)


def decode_exactly(body: bytes, *, enveloped: bool, content_type: str) -> Any:
    """Decode a body as `decode` does without a model, with a Decimal for each float.

    Raise MalformedPayload.
    """
    try:
        return _decode(body, _EXACT, _TERSE_ENVELOPE if enveloped else None, content_type)
    except MalformedPayload:
        return decode(body, enveloped=enveloped, content_type=content_type)  # finds the reason


def decode_headers(headers: bytes) -> dict[str, str]:
    """Return the stored headers of an event, by their lower-case names."""
    return _HEADERS.decode(headers)


def content_type_of(headers: bytes) -> str:
    """Return the content type in the stored headers of an event; an empty text without one."""
    return decode_headers(headers).get("content-type", "")


def _decode(body: bytes, decoder: Decoder, envelope: Decoder | None, content_type: str) -> Any:
    if content_type.startswith(FORM) and not body.lstrip().startswith((b"{", b"[")):
        return decoder.decode_form(_form_fields(body))
    content: Content = body if envelope is None else envelope.decode_json(body).payload
    return decoder.decode_json(content)


def _form_fields(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True))
    except ValueError:
        raise malformed("not a form") from None
