"""JSON schemas of requests and responses, built from the model's classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from onceward.model.admin import (
    MAX_WAITING_COUNTED,
    AttemptItem,
    AuditItem,
    DeliveryItem,
    EffectItem,
    EventItem,
    HandlerItem,
    JobItem,
    RejectionCount,
    RejectionItem,
    SourceItem,
    WatermarkItem,
)
from onceward.model.effects import EffectStatus, ResolvedOutcome
from onceward.model.events import ID_LIMIT_BYTES, Outcome
from onceward.model.inline import InlineStatus
from onceward.operate.filters import ID_DIGITS, MAX_LIMIT
from onceward.operate.operator import MAX_ATTEMPTS_SHOWN

Json = dict[str, Any]

ITEMS: Final[Mapping[str, type]] = {
    "events": EventItem,
    "jobs": JobItem,
    "effects": EffectItem,
    "deliveries": DeliveryItem,
    "rejections": RejectionItem,
    "audit": AuditItem,
    "watermarks": WatermarkItem,
    "handlers": HandlerItem,
    "sources": SourceItem,
}

ID: Final[Json] = {"type": "string", "pattern": rf"^[0-9]{{1,{ID_DIGITS}}}$"}
_FLAG: Final[Json] = {"type": "boolean"}
_TIME: Final[Json] = {"type": "string", "format": "date-time"}


def ref(part: str, name: str) -> Json:
    """Return a reference to a component of the document."""
    return {"$ref": f"#/components/{part}/{name}"}


def text(description: str, *types: str) -> Json:
    """Return the schema of an id, a type, a reference or a key."""
    return {
        "description": f"{description} At most {ID_LIMIT_BYTES} bytes of UTF-8, without NUL.",
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
    """Return the schema of a type in the model."""
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        return {"anyOf": [schema_of(part) for part in get_args(kind)]}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _item(get_args(kind)[0])}
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": list(get_args(kind))}
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
    properties = {name: schema_of(kind) for name, kind in get_type_hints(item).items()}
    ids = {name: ID for name in properties if name == "id"}
    return _object(item.__doc__ or "", **properties | ids)


def _page(kind: str) -> Json:
    counts = {"type": "array", "items": _item(RejectionCount)}
    return _object(
        "One page of a list, newest first.",
        **({"counts": counts} if kind == "rejections" else {}),
        items={"type": "array", "maxItems": MAX_LIMIT, "items": ref("schemas", item_name(kind))},
        limit={"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        next={
            "description": "The `after` of the following page; null on the last page.",
            "anyOf": [ID, {"type": "null"}],
        },
    )


def item_name(kind: str) -> str:
    """Return the schema name of a list's items."""
    return ITEMS[kind].__name__.removesuffix("Item")


_ENVELOPE: Final = _object(
    "An event from one of your own applications. Other members are stored and ignored.",
    optional=["reference"],
    event_id=text("The event's id, unique within this source.", "integer"),
    event_type=text("The event's type.", "integer"),
    payload={"description": "The payload for the handlers: any JSON."},
    reference=text("The related object, for filtering.", "integer", "null"),
)
_CLOSED: Final[Json] = {"additionalProperties": False}
_OPERATOR_ACTION: Final = _CLOSED | _object(
    "Who acts and why. Both are stored in the audit entry.",
    actor=text("Who acts.") | {"pattern": r"^[^\x00]*[^\x00\s][^\x00]*$"},
    reason=text("Why they act.") | {"pattern": r"^[^\x00]*[^\x00\s][^\x00]*$"},
)
_REQUEUE_ACTION: Final = _CLOSED | _object(
    "Who requeues a job and why.",
    optional=["even_if_stale"],
    **_OPERATOR_ACTION["properties"],
    even_if_stale=_FLAG
    | {
        "description": "Apply the event even if its key has applied a newer version.",
        "default": False,
    },
)
_ROUTE_ACTION: Final = _CLOSED | _object(
    "Which handler gets the event, who says so and why.",
    **_OPERATOR_ACTION["properties"],
    handler=text("A handler."),
)
_FORGET_ACTION: Final = _CLOSED | _object(
    "Which watermark to delete, who does it and why.",
    **_OPERATOR_ACTION["properties"],
    handler=text("A handler."),
    key={
        "description": "The version key, as the list or the payload has it.",
        "type": "string",
    },
)
_FORGOTTEN_WATERMARK: Final = _object(
    "The deleted watermark and the audit entry.",
    ok={"const": True},
    watermark=ref("schemas", "Watermark"),
    audit=ref("schemas", "Audit"),
)
_CALL_NO: Final[Json] = {
    "description": "The last call, as the list of effects shows it.",
    "type": "integer",
    "minimum": 1,
    "maximum": 2**31 - 1,
}
_RESOLUTION: Final[Json] = {
    "description": "Whether an effect happened, who says so and why.",
    "oneOf": [
        _object(
            "It happened.",
            optional=["call_no", "result"],
            **_OPERATOR_ACTION["properties"],
            outcome={"const": ResolvedOutcome.HAPPENED},
            call_no=_CALL_NO | {"type": ["integer", "null"]},
            result={"description": "What the call returns from now on. Default: null."},
        )
        | _CLOSED,
        _object(
            "It did not happen. The call may be made again.",
            **_OPERATOR_ACTION["properties"],
            outcome={"const": ResolvedOutcome.DID_NOT_HAPPEN},
            call_no=_CALL_NO,
        )
        | _CLOSED,
    ],
}
_RESOLVED_EFFECT: Final = _object(
    "The effect, the jobs that waited for the answer, and the audit entry.",
    ok={"const": True},
    id=ID,
    status=schema_of(EffectStatus),
    requeued={"type": "array", "items": ID},
    audit=ref("schemas", "Audit"),
)
_ACCEPTED_FIELDS: Final[Json] = {"accepted": {"const": True}, "source": {"type": "string"}}
_RECEIPT_FIELDS: Final[Json] = {
    "duplicate": _FLAG
    | {"description": "The event was recorded before; its handlers do not run again."},
    "conflict": _FLAG
    | {"description": "The event was recorded with another body; this body is kept, not applied."},
    "event_id": text("The event's id, as a string."),
    "id": ID | {"description": "The ledger's id of the event."},
}
_RECEIPT: Final = _object("The delivery is durable.", **_ACCEPTED_FIELDS, **_RECEIPT_FIELDS)
_RECEIPTS: Final = _object(
    "A delivery of several events, or of no event, is durable.",
    **_ACCEPTED_FIELDS,
    events={"type": "array", "items": _object("One of the events.", **_RECEIPT_FIELDS)},
)
_STATE_FIELDS: Final[Json] = {
    "status": schema_of(InlineStatus),
    "event_id": text("The event's id, as a string."),
}
_PROCESSED: Final[Json] = {
    "description": "The events of an inline source, after their handlers ran.",
    "anyOf": [
        _object("The only event.", **_STATE_FIELDS),
        _object(
            "Several events, or none.",
            events={"type": "array", "items": _object("One of the events.", **_STATE_FIELDS)},
        ),
    ],
}
_ERROR: Final = _object(
    "Why a request failed.",
    error={"type": "string", "description": "A code for programs."},
    message={"type": "string", "description": "A sentence for people, ending with what to do."},
)
_REQUEUED: Final = _object(
    "The requeued job and its audit entry.",
    ok={"const": True},
    id=ID,
    status={"const": "queued"},
    available_at=_TIME,
    note={
        "description": "That no live worker runs the handler of the job; null if one does.",
        "type": ["string", "null"],
    },
    audit=ref("schemas", "Audit"),
)
_CANCELLED: Final = _object(
    "The cancelled job and its audit entry.",
    ok={"const": True},
    id=ID,
    status={"const": "cancelled"},
    finished_at=_TIME,
    audit=ref("schemas", "Audit"),
)
_ROUTED_EVENT: Final = _object(
    "The new job of an event and the audit entry.",
    ok={"const": True},
    id=ID,
    job_id=ID,
    status={"const": "queued"},
    available_at=_TIME,
    note={
        "description": "That no live worker runs the handler of the job; null if one does.",
        "type": ["string", "null"],
    },
    audit=ref("schemas", "Audit"),
)
_DISMISSED: Final = _object(
    "The event whose review has ended, and the audit entry.",
    ok={"const": True},
    id=ID,
    processing_state={"const": "ignored"},
    processed_at=_TIME,
    audit=ref("schemas", "Audit"),
)
_PAUSE_CHANGE: Final = _object(
    "The handler or source, and the audit entry.",
    ok={"const": True},
    name={"type": "string"},
    paused_at={
        "description": "When it was paused; null after a resume.",
        "anyOf": [_TIME, {"type": "null"}],
    },
    note={
        "description": "What a pause does to the senders of an inline source; null otherwise.",
        "type": ["string", "null"],
    },
    audit=ref("schemas", "Audit"),
)
_MANUAL_RECORDING: Final = _object(
    "The events that an operator recorded, and the audit entry.",
    ok={"const": True},
    events={
        "type": "array",
        "items": _object("One of the events.", id=ID, outcome=schema_of(Outcome)),
    },
    audit=ref("schemas", "Audit"),
)
_JOB_DETAIL: Final = _object(
    "A job with its failed attempts.",
    **_item(JobItem)["properties"],
    failed_attempts={
        "description": "The newest failed attempts, newest first.",
        "type": "array",
        "maxItems": MAX_ATTEMPTS_SHOWN,
        "items": _item(AttemptItem),
    },
    waiting_behind={
        "description": "The queued jobs of the same handler and ordering key that come later.",
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_WAITING_COUNTED,
    },
)
HEALTH: Final = _object("The process runs.", healthy={"const": True})
READY: Final = _object(
    "The ledger responds. Warnings are for people: receiving works all the same.",
    ready={"const": True},
    warnings={"type": "array", "items": {"type": "string"}},
)
NOT_READY: Final = _object(
    "The ledger does not respond.", ready={"const": False}, message={"type": "string"}
)
ADMIN_INDEX: Final = _object(
    "The paths of the lists and of the OpenAPI document.",
    message={"type": "string"},
    look={"type": "array", "items": {"type": "string"}},
    document={"type": "string"},
)
INDEX: Final = _object(
    "The entry points.",
    message={"type": "string"},
    post={"type": "string"},
    look={"type": "array", "items": {"type": "string"}},
)


def schemas() -> Json:
    """Return all named schemas."""
    items = {item_name(kind): _item(item) for kind, item in ITEMS.items()}
    pages = {f"{item_name(kind)}Page": _page(kind) for kind in ITEMS}
    others = {
        "Envelope": _ENVELOPE,
        "OperatorAction": _OPERATOR_ACTION,
        "RequeueAction": _REQUEUE_ACTION,
        "ForgetAction": _FORGET_ACTION,
        "ForgottenWatermark": _FORGOTTEN_WATERMARK,
        "Resolution": _RESOLUTION,
        "ResolvedEffect": _RESOLVED_EFFECT,
        "Receipt": _RECEIPT,
        "Receipts": _RECEIPTS,
        "Processed": _PROCESSED,
        "JobDetail": _JOB_DETAIL,
        "Requeued": _REQUEUED,
        "Cancelled": _CANCELLED,
        "RouteAction": _ROUTE_ACTION,
        "RoutedEvent": _ROUTED_EVENT,
        "Dismissed": _DISMISSED,
        "PauseChange": _PAUSE_CHANGE,
        "ManualRecording": _MANUAL_RECORDING,
        "Error": _ERROR,
    }
    return items | pages | others
