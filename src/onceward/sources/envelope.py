"""The envelope of ``POST /events/ingest``: an event's identity around its payload."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onceward.errors import InvalidEnvelope
from onceward.model.events import Identity
from onceward.sources.identify import BODY_TOO_DEEP, ReadFailure, decode_leniently, usable_text
from onceward.sources.json_text import is_too_deep


class _Envelope(msgspec.Struct, gc=False):
    event_id: Any = msgspec.UNSET
    event_type: Any = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reference: Any = None


_DECODER: Final = msgspec.json.Decoder(_Envelope)
_FIELDS: Final = _Envelope.__struct_fields__


def identify_envelope(body: bytes) -> Identity:
    """Return the identity in a body for ``POST /events/ingest``. The payload is not decoded.

    Raises InvalidEnvelope for the first invalid field.
    """
    envelope = _decode(body)
    event_id = _required("event_id", envelope.event_id)
    event_type = _required("event_type", envelope.event_type)
    if envelope.payload is msgspec.UNSET:
        raise InvalidEnvelope("payload is missing", code="no_payload")
    if envelope.reference is None:
        return Identity(event_id, event_type)
    reference = usable_text("reference", envelope.reference)
    if isinstance(reference, ReadFailure):
        raise InvalidEnvelope(reference.reason, code="bad_reference")
    return Identity(event_id, event_type, reference)


def _decode(body: bytes) -> _Envelope:
    if is_too_deep(body):
        raise InvalidEnvelope(BODY_TOO_DEEP.reason, code="invalid_json")
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError:  # not an object, or a number beyond the decoder's range
        members = decode_leniently(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        members = ReadFailure("the body is not JSON")
    if isinstance(members, ReadFailure):
        raise InvalidEnvelope(members.reason, code="invalid_json")
    return _Envelope(**{name: members[name] for name in _FIELDS if name in members})


def _required(name: str, value: object) -> str:
    text = usable_text(name, value)
    if isinstance(text, ReadFailure):
        raise InvalidEnvelope(text.reason, code=f"no_{name}")
    return text
