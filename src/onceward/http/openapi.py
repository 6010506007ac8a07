"""The API as an OpenAPI 3.1 document, made from the tables that the code itself goes by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

from onceward.http.ingest import HEALTHZ, INGEST, READYZ, WEBHOOKS
from onceward.model import (
    ID_LIMIT_BYTES,
    INGEST_SOURCE,
    REQUEUEABLE,
    AuditItem,
    DeliveryItem,
    EffectItem,
    EventItem,
    JobItem,
)
from onceward.operate import DEFAULT_LIMIT, ID_DIGITS, LARGEST_LIMIT, STATUSES, filters_of
from onceward.schemes import Scheme
from onceward.settings import Settings
from onceward.sources import NAME, Source
from onceward.version import __version__

OPENAPI: Final = "/openapi.json"
FRONT_DOOR: Final = "/"

Json = dict[str, Any]

_TOKEN: Final = "admin_token"  # noqa: S105 - the name of a scheme
_ITEMS: Final[Mapping[str, type]] = {
    "events": EventItem,
    "jobs": JobItem,
    "effects": EffectItem,
    "deliveries": DeliveryItem,
    "audit": AuditItem,
}
_SPOKEN: Final = {"audit": "audit entries"}

# What is refused: why, and with which codes. Codes may be added; go by the status first.
_REFUSALS: Final[Mapping[int, tuple[str, Collection[str]]]] = {
    400: (
        "A header that decides occurs more than once, or a sender's question is not understood.",
        ["no_question", "repeated_header"],
    ),
    401: ("The token or the signature was not accepted.", ["signature_rejected", "unauthorized"]),
    403: (
        "A foreign host name, a page of another site, or a proxy, on what is open.",
        ["foreign_host", "foreign_origin", "forwarded"],
    ),
    404: ("There is no such thing.", ["not_found", "unknown_source"]),
    408: ("The body took too long.", ["slow_body"]),
    409: ("It is not in a state that allows this.", ["not_in_state"]),
    413: ("The body is too large.", ["too_large"]),
    415: ("A Content-Encoding, or JSON that is not said to be JSON.", ["encoded_body", "not_json"]),
    422: (
        "What was sent cannot be used; the message names the field.",
        [
            *("bad_act", "bad_filter", "bad_reference", "invalid_json"),
            *("no_event_id", "no_event_type", "no_payload"),
        ],
    ),
    431: ("The headers are too many or too large.", ["large_headers"]),
    503: (
        "The ledger cannot be used now. Nothing is known to be written: try again.",
        ["not_recorded", "overloaded", "slow", "unavailable"],
    ),
}
_BODY_REFUSALS: Final = (408, 413, 415, 422)


# Values.

_ID: Final[Json] = {"type": "string", "pattern": rf"^[0-9]{{1,{ID_DIGITS}}}$"}
_FLAG: Final[Json] = {"type": "boolean"}
_MOMENT: Final[Json] = {"type": "string", "format": "date-time"}


def _text(description: str, *types: str) -> Json:
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


def _of_type(kind: Any) -> Json:
    """The schema of a field of one of the model's items."""
    if isinstance(kind, UnionType):
        return {"anyOf": [_of_type(part) for part in get_args(kind)]}
    if issubclass(kind, StrEnum):
        return {"type": "string", "enum": [str(value) for value in kind]}
    known: dict[type, Json] = {
        str: {"type": "string"},
        int: {"type": "integer", "minimum": 0},
        datetime: _MOMENT,
        type(None): {"type": "null"},
    }
    return known[kind]


def _item(item: type) -> Json:
    types = get_type_hints(item)
    properties = {entry.name: _of_type(types[entry.name]) for entry in fields(item)}
    return _object(item.__doc__ or "", **properties | {"id": _ID})


def _page(kind: str) -> Json:
    return _object(
        "A part of a list, the newest first.",
        items={"type": "array", "maxItems": LARGEST_LIMIT, "items": _ref("schemas", _name(kind))},
        limit={"type": "integer", "minimum": 1, "maximum": LARGEST_LIMIT},
        next={
            "description": "The `after` of the part that follows; null where none does.",
            "anyOf": [_ID, {"type": "null"}],
        },
    )


def _name(kind: str) -> str:
    return _ITEMS[kind].__name__.removesuffix("Item")


_ENVELOPE: Final = _object(
    "An event that one of your own applications sends. Further members are kept and passed over.",
    optional=["reference"],
    event_id=_text("The event's id, unique among what is sent here.", "integer"),
    event_type=_text("What happened.", "integer"),
    payload={"description": "What the handlers get: any JSON."},
    reference=_text("The related object, to find the event by.", "integer", "null"),
)
_ACT: Final = _object(
    "Who acts, and why: both go into the audit entry.",
    actor=_text("Who says so.") | {"pattern": r"^[^\x00]*[^\x00\s][^\x00]*$"},
    reason=_text("Why.") | {"pattern": r"^[^\x00]*[^\x00\s][^\x00]*$"},
)
_ACCEPTED: Final[Json] = {"accepted": {"const": True}, "source": {"type": "string"}}
_RECEIVED: Final[Json] = {
    "duplicate": _FLAG | {"description": "The event is known; nothing is applied again."},
    "conflict": _FLAG
    | {"description": "It is known with another body; this one is kept beside it."},
    "event_id": _text("The event's id, as text."),
    "id": _ID | {"description": "The ledger's own id of the event."},
}
_RECEIPT: Final = _object("The delivery is durable.", **_ACCEPTED, **_RECEIVED)
_RECEIPTS: Final = _object(
    "A delivery of several events, or of none, is durable.",
    **_ACCEPTED,
    events={"type": "array", "items": _object("One of the events.", **_RECEIVED)},
)
_REFUSAL: Final = _object(
    "Why a request is refused.",
    error={"type": "string", "description": "A code, for programs."},
    message={"type": "string", "description": "A sentence, for people."},
)
_REQUEUED: Final = _object(
    "What a requeue left behind.",
    ok={"const": True},
    id=_ID,
    status={"const": "queued"},
    available_at=_MOMENT,
    audit={"$ref": "#/components/schemas/Audit"},
)
_HEALTH: Final = _object("The process is there.", healthy={"const": True})
_READY: Final = _object("The ledger can be read.", ready={"const": True})
_NOT_READY: Final = _object(
    "The ledger cannot be read.", ready={"const": False}, message={"type": "string"}
)
_WELCOMED: Final = _object(
    "Where to go.",
    message={"type": "string"},
    post={"type": "string"},
    look={"type": "array", "items": {"type": "string"}},
)


# Parts of an operation.


@dataclass(frozen=True, slots=True)
class _Guard:
    """Who gets in: how to prove it, and the refusals for who cannot."""

    security: Sequence[Json] = ()
    statuses: tuple[int, ...] = ()


_PUBLIC: Final = _Guard()


def _ref(part: str, name: str) -> Json:
    return {"$ref": f"#/components/{part}/{name}"}


def _answer(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _body(schema: Json, media_type: str = "application/json") -> Json:
    return {"required": True, "content": {media_type: {"schema": schema}}}


def _operation(
    id: str,
    summary: str,
    guard: _Guard,
    answers: dict[int, Json],
    *refused: int,
    **more: Any,
) -> Json:
    refusals = {status: _ref("responses", f"Refused{status}") for status in (*guard.statuses, 431)}
    refusals |= {status: _ref("responses", f"Refused{status}") for status in refused}
    return {
        "operationId": id,
        "summary": summary,
        **more,
        "security": list(guard.security),
        "responses": {str(status): told for status, told in sorted((refusals | answers).items())},
    }


def _parameter(place: str, name: str, description: str, schema: Json) -> Json:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": schema,
    }


def _filter(kind: str, name: str) -> Json:
    """One query parameter of a list, by the name that `operate` knows it by."""
    statuses = STATUSES[kind]
    described: dict[str, tuple[str, Json]] = {
        "limit": (
            "How many at most.",
            {
                "type": "integer",
                "minimum": 1,
                "maximum": LARGEST_LIMIT,
                "default": DEFAULT_LIMIT,
            },
        ),
        "after": ("The `next` of the part before.", _ID),
        "event_id": ("The sender's id of the event.", _text("An event's id.")),
        "status": ("Only those that stand so.", _of_type(statuses) if statuses else {}),
        "reference": ("Only those about this object.", _text("A reference.")),
    }
    description, schema = described[name]
    return _parameter("query", name, description, schema)


# The routes.


def _admin_paths(prefix: str, guard: _Guard) -> Json:
    lists = {
        f"{prefix}/{kind}": {
            "get": _operation(
                f"list_{kind}",
                f"List {_SPOKEN.get(kind, kind)}, the newest first",
                guard,
                {200: _answer("A part of the list.", _ref("schemas", f"{_name(kind)}Page"))},
                *(422, 503),
                tags=["admin"],
                parameters=[_filter(kind, name) for name in filters_of(kind)],
            )
        }
        for kind in _ITEMS
    }
    requeue = _operation(
        "requeue_job",
        f"Queue a job again that is {' or '.join(sorted(REQUEUEABLE))}",
        guard,
        {200: _answer("It is queued, and the audit entry is there.", _ref("schemas", "Requeued"))},
        *(*_BODY_REFUSALS, 404, 409, 503),
        tags=["admin"],
        parameters=[_parameter("path", "job", "The job's id.", _ID)],
        requestBody=_body(_ref("schemas", "Act")),
    )
    itself = _operation(
        "get_openapi",
        "This document",
        guard,
        {200: _answer("An OpenAPI 3.1 document.", {"type": "object"})},
        tags=["service"],
    )
    return {
        **lists,
        f"{prefix}/jobs/{{job}}/requeue": {"post": requeue},
        OPENAPI: {"get": itself},
    }


def _receiving_paths(sources: Mapping[str, Source], settings: Settings, guard: _Guard) -> Json:
    largest = f"The body may have {settings.max_body_bytes} bytes."
    durable = "It is durable: new, known, or in conflict."
    receipt, receipts = _ref("schemas", "Receipt"), _ref("schemas", "Receipts")
    webhook = _operation(
        "receive_webhook",
        "Receive a webhook from a source",
        _senders(sources),
        {
            status: _answer(durable, {"anyOf": [receipt, receipts]})
            if is_receipt
            else {"description": f"{durable} The sender insists on this answer."}
            for status, is_receipt in _statuses(sources)
        },
        *(*_BODY_REFUSALS, 400, 404, 503),
        tags=["receiving"],
        description=f"Any content type. {largest} Nothing signed is refused for its content.",
        parameters=[_parameter("path", "source", "The source's name.", _source_name(sources))],
        requestBody={"content": {"*/*": {"schema": {}}}},
    )
    ingest = _operation(
        "ingest_event",
        f"Receive an event from an application of your own, as source {INGEST_SOURCE}",
        guard,
        {202: _answer(durable, receipt)},
        *(*_BODY_REFUSALS, 503),
        tags=["receiving"],
        description=largest,
        requestBody=_body(_ref("schemas", "Envelope")),
    )
    return {f"{WEBHOOKS}{{source}}": {"post": webhook}, INGEST: {"post": ingest}}


def _statuses(sources: Mapping[str, Source]) -> list[tuple[int, bool]]:
    """How what is durable is answered, and whether by a receipt; those with one come last."""
    accepted = [source.accepted for source in sources.values()] or [202]
    return sorted((it, True) if isinstance(it, int) else (it.status, False) for it in set(accepted))


def _senders(sources: Mapping[str, Source]) -> _Guard:
    """Each source proves itself with its own signature; an unsigned one with none."""
    proofs: list[Json] = [{scheme: []} for scheme in _signatures(sources)]
    if any(source.unsigned for source in sources.values()):
        return _Guard([*proofs, {}], (401, 403))
    return _Guard(proofs, (401,))


def _signatures(sources: Mapping[str, Source]) -> Json:
    return {
        f"signature_{name}": {
            "type": "apiKey",
            "in": "header",
            "name": header,
            "description": f"The signature of source {name}, as the preset {source.preset} has it.",
        }
        for name, source in sorted(sources.items())
        if not source.unsigned and (header := _header_of(source.scheme))
    }


def _header_of(scheme: Scheme) -> str | None:
    kind, _, name = scheme.at.partition("|")[0].partition(":")
    return name if kind == "header" else None


def _source_name(sources: Mapping[str, Source]) -> Json:
    if sources:
        return {"type": "string", "enum": sorted(sources)}
    return {"type": "string", "pattern": f"^{NAME.pattern}$"}


def _service_paths(*, dev: bool) -> Json:
    health = _operation(
        "get_health",
        "Whether the process is there",
        _PUBLIC,
        {200: _answer("It is.", _HEALTH)},
        tags=["service"],
    )
    readiness = _operation(
        "get_readiness",
        "Whether the ledger can be read",
        _PUBLIC,
        {200: _answer("It can.", _READY), 503: _answer("It cannot.", _NOT_READY)},
        tags=["service"],
    )
    paths: Json = {HEALTHZ: {"get": health}, READYZ: {"get": readiness}}
    if dev:
        told = {200: _answer("Where to post and where to look.", _WELCOMED)}
        welcome = _operation("get_welcome", "Where to go", _PUBLIC, told, tags=["service"])
        paths[FRONT_DOOR] = {"get": welcome}
    return paths


# The document.


def document(
    *, settings: Settings, sources: Mapping[str, Source] | None, prefix: str, dev: bool
) -> Json:
    """Describe the API as it is served: the admin side below `prefix`, with `dev` open to all.

    Receiving is described where `sources` are given; they are not for an admin side on its own.
    """
    guard = _Guard((), (400, 403)) if dev else _Guard([{_TOKEN: []}], (400, 401))
    paths = _admin_paths(prefix, guard)
    if sources is not None:
        paths = _receiving_paths(sources, settings, guard) | paths | _service_paths(dev=dev)
    return {
        "openapi": "3.1.0",
        "info": _info(settings),
        "servers": [{"url": ".", "description": "Where this document is."}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": {f"Refused{status}": _refused(status) for status in _REFUSALS},
            "securitySchemes": _schemes(sources or {}, dev=dev),
        },
    }


def _info(settings: Settings) -> Json:
    return {
        "title": "Onceward",
        "version": __version__,
        "summary": "A webhook inbox: every event recorded once, every effect happens once.",
        "description": (
            "Every answer is JSON. HEAD may be used wherever GET may; any other method that is "
            "not listed is 405, any other path 404. A request may have "
            f"{settings.max_headers} headers, {settings.max_header_bytes} bytes with its target."
        ),
        "license": {"name": "MIT", "identifier": "MIT"},
    }


def _schemas() -> Json:
    items = {_name(kind): _item(item) for kind, item in _ITEMS.items()}
    pages = {f"{_name(kind)}Page": _page(kind) for kind in _ITEMS}
    others = {
        "Envelope": _ENVELOPE,
        "Act": _ACT,
        "Receipt": _RECEIPT,
        "Receipts": _RECEIPTS,
        "Requeued": _REQUEUED,
        "Refusal": _REFUSAL,
    }
    return items | pages | others


def _refused(status: int) -> Json:
    why, codes = _REFUSALS[status]
    told = _answer(f"{why} Codes: {', '.join(codes)}.", _ref("schemas", "Refusal"))
    match status:
        case 401:
            scheme = {"type": "string"}
            told["headers"] = {"WWW-Authenticate": {"schema": scheme}}
        case 503:
            seconds = {"type": "integer", "minimum": 1}
            told["headers"] = {"Retry-After": {"required": True, "schema": seconds}}
    return told


def _schemes(sources: Mapping[str, Source], *, dev: bool) -> Json:
    token = {"type": "http", "scheme": "bearer", "description": "An admin token."}
    return ({} if dev else {_TOKEN: token}) | _signatures(sources)
