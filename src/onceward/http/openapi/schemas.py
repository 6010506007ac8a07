"""What is sent and answered, as schemas, made from the model's own classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

from onceward.model.admin import (
    AuditItem,
    DeliveryItem,
    EffectItem,
    EventItem,
    JobItem,
    RejectionCount,
    RejectionItem,
)
from onceward.model.events import ID_LIMIT_BYTES, Outcome
from onceward.operate.filters import ID_DIGITS, MAX_LIMIT

Json = dict[str, Any]

ITEMS: Final[Mapping[str, type]] = {
    "events": EventItem,
    "jobs": JobItem,
    "effects": EffectItem,
    "deliveries": DeliveryItem,
    "rejections": RejectionItem,
    "audit": AuditItem,
}


ID: Final[Json] = {"type": "string", "pattern": rf"^[0-9]{{1,{ID_DIGITS}}}$"}
_FLAG: Final[Json] = {"type": "boolean"}
_TIME: Final[Json] = {"type": "string", "format": "date-time"}


def text(description: str, *types: str) -> Json:
    """What can be an id, a type, a reference or a key."""
    return {
        "description": f"{description} At most {ID_LIMIT_BYTES} bytes in UTF-8, without a NUL.",
        "type": ["string", *types] if types else "string",
        "minLength": 1,
        "maxLength": ID_LIMIT_BYTES,
        "pattern": r"^[^\x00]+$",
    }


def _object(description: str, optional: Collection[str] = (), **properties: Json) -> Json:
    return {
        "description": description,
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def schema_of(kind: Any) -> Json:
    """The schema of a field of one of the model's items."""
    if isinstance(kind, UnionType):
        return {"anyOf": [schema_of(part) for part in get_args(kind)]}
    if issubclass(kind, StrEnum):
        return {"type": "string", "enum": [str(value) for value in kind]}
    schemas: dict[type, Json] = {
        str: {"type": "string"},
        int: {"type": "integer", "minimum": 0},
        bool: _FLAG,
        datetime: _TIME,
        type(None): {"type": "null"},
    }
    return schemas[kind]


def _item(item: type) -> Json:
    types = get_type_hints(item)
    properties = {entry.name: schema_of(types[entry.name]) for entry in fields(item)}
    ids = {name: ID for name in properties if name == "id"}
    return _object(item.__doc__ or "", **properties | ids)


def _page(kind: str) -> Json:
    counts = {"type": "array", "items": _item(RejectionCount)}
    return _object(
        "A part of a list, the newest first.",
        **({"counts": counts} if kind == "rejections" else {}),
        items={"type": "array", "maxItems": MAX_LIMIT, "items": ref("schemas", item_name(kind))},
        limit={"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        next={
            "description": "The `after` of the part that follows; null where none does.",
            "anyOf": [ID, {"type": "null"}],
        },
    )


def item_name(kind: str) -> str:
    """What an item of a list is called."""
    return ITEMS[kind].__name__.removesuffix("Item")


_ENVELOPE: Final = _object(
    "An event that one of your own applications sends. Further members are kept and passed over.",
    optional=["reference"],
    event_id=text("The event's id, unique among what is sent here.", "integer"),
    event_type=text("What happened.", "integer"),
    payload={"description": "What the handlers get: any JSON."},
    reference=text("The related object, to find the event by.", "integer", "null"),
)
_OPERATOR_ACTION: Final = _object(
    "Who acts, and why: both go into the audit entry.",
    actor=text("Who says so.") | {"pattern": r"^[^\x00]*[^\x00\s][^\x00]*$"},
    reason=text("Why.") | {"pattern": r"^[^\x00]*[^\x00\s][^\x00]*$"},
)
_ACCEPTED_FIELDS: Final[Json] = {"accepted": {"const": True}, "source": {"type": "string"}}
_RECEIPT_FIELDS: Final[Json] = {
    "duplicate": _FLAG | {"description": "The event is known; nothing is applied again."},
    "conflict": _FLAG
    | {"description": "It is known with another body; this one is kept beside it."},
    "event_id": text("The event's id, as text."),
    "id": ID | {"description": "The ledger's own id of the event."},
}
_RECEIPT: Final = _object("The delivery is durable.", **_ACCEPTED_FIELDS, **_RECEIPT_FIELDS)
_RECEIPTS: Final = _object(
    "A delivery of several events, or of none, is durable.",
    **_ACCEPTED_FIELDS,
    events={"type": "array", "items": _object("One of the events.", **_RECEIPT_FIELDS)},
)
_ERROR: Final = _object(
    "Why a request is refused.",
    error={"type": "string", "description": "A code, for programs."},
    message={"type": "string", "description": "A sentence, for people."},
)
_REQUEUED: Final = _object(
    "What a requeue left behind.",
    ok={"const": True},
    id=ID,
    status={"const": "queued"},
    available_at=_TIME,
    audit={"$ref": "#/components/schemas/Audit"},
)
_MANUAL_RECORDING: Final = _object(
    "What was recorded on a person's word.",
    ok={"const": True},
    events={
        "type": "array",
        "items": _object("One of the events.", id=ID, outcome=schema_of(Outcome)),
    },
    audit={"$ref": "#/components/schemas/Audit"},
)
HEALTH: Final = _object("The process is there.", healthy={"const": True})
READY: Final = _object("The ledger can be read.", ready={"const": True})
NOT_READY: Final = _object(
    "The ledger cannot be read.", ready={"const": False}, message={"type": "string"}
)
INDEX: Final = _object(
    "Where to go.",
    message={"type": "string"},
    post={"type": "string"},
    look={"type": "array", "items": {"type": "string"}},
)


def ref(part: str, name: str) -> Json:
    """A reference to what is described elsewhere in the document."""
    return {"$ref": f"#/components/{part}/{name}"}


def schemas() -> Json:
    """All that is referred to by name."""
    items = {item_name(kind): _item(item) for kind, item in ITEMS.items()}
    pages = {f"{item_name(kind)}Page": _page(kind) for kind in ITEMS}
    others = {
        "Envelope": _ENVELOPE,
        "OperatorAction": _OPERATOR_ACTION,
        "Receipt": _RECEIPT,
        "Receipts": _RECEIPTS,
        "Requeued": _REQUEUED,
        "ManualRecording": _MANUAL_RECORDING,
        "Error": _ERROR,
    }
    return items | pages | others
