"""The envelope of ``POST /events/ingest``: which event its body is about."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onceward.errors import InvalidEnvelope
from onceward.model.events import Identity
from onceward.sources.identify import Fault, read_tolerantly, usable_text


class _Envelope(msgspec.Struct, gc=False):
    event_id: Any = msgspec.UNSET
    event_type: Any = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reference: Any = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


_MEMBERS: Final = _Envelope.__struct_fields__


def identify_envelope(body: bytes) -> Identity:
    """Say what a body for ``POST /events/ingest`` is about; its payload is not decoded.

    Raises InvalidEnvelope for the first fault found.
    """
    envelope = _envelope(body)
    event_id = _required("event_id", envelope.event_id)
    event_type = _required("event_type", envelope.event_type)
    if envelope.payload is msgspec.UNSET:
        raise _refused("no_payload", "payload is missing")
    if envelope.reference is None:
        return Identity(event_id, event_type)
    reference = usable_text("reference", envelope.reference)
    if isinstance(reference, Fault):
        raise _refused("bad_reference", reference.text)
    return Identity(event_id, event_type, reference)


def _envelope(body: bytes) -> _Envelope:
    try:
        return _ENVELOPE.decode(body)
    except msgspec.ValidationError:  # not an object, or a number beyond the decoder's range
        members = read_tolerantly(body)
    except RecursionError:
        members = Fault("the body is nested too deeply")
    except (msgspec.DecodeError, UnicodeDecodeError):
        members = Fault("the body is not JSON")
    if isinstance(members, Fault):
        raise _refused("invalid_json", members.text)
    return _Envelope(**{name: members[name] for name in _MEMBERS if name in members})


def _required(name: str, value: object) -> str:
    text = usable_text(name, value)
    if isinstance(text, Fault):
        raise _refused(f"no_{name}", text.text)
    return text


def _refused(code: str, message: str) -> InvalidEnvelope:
    return InvalidEnvelope(message, code=code)
