"""The API as an OpenAPI 3.1 document, made from the tables that the code itself goes by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onceward.http.openapi.schemas import (
    HEALTH,
    ID,
    INDEX,
    ITEMS,
    NOT_READY,
    READY,
    Json,
    item_name,
    ref,
    schema_of,
    schemas,
    text,
)
from onceward.http.receive_app import HEALTHZ, INGEST, READYZ, WEBHOOKS
from onceward.model.events import INGEST_SOURCE
from onceward.model.jobs import REQUEUEABLE
from onceward.operate.filters import DEFAULT_LIMIT, FILTERS, MAX_LIMIT, STATUSES
from onceward.settings import Settings
from onceward.sources.configure import SOURCE_NAME
from onceward.sources.schemes import Scheme
from onceward.sources.source import Source
from onceward.version import __version__

OPENAPI: Final = "/openapi.json"
INDEX_PATH: Final = "/"

_TOKEN: Final = "admin_token"  # noqa: S105 - the name of a scheme
_ITEM_NAMES: Final = {"audit": "audit entries", "rejections": "requests that did not verify"}

# What is refused: why, and with which codes. Codes may be added; go by the status first.
_ERRORS: Final[Mapping[int, tuple[str, Collection[str]]]] = {
    400: (
        "A header that decides occurs more than once, or what a sender asks cannot be done.",
        ["no_question", "repeated_header", "unusable_secret"],
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
_BODY_ERRORS: Final = (408, 413, 415, 422)


# Parts of an operation.


@dataclass(frozen=True, slots=True)
class _Guard:
    """Who gets in: how to prove it, and the refusals for who cannot."""

    security: Sequence[Json] = ()
    statuses: tuple[int, ...] = ()


_PUBLIC: Final = _Guard()


def _json_content(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _body(schema: Json, media_type: str = "application/json") -> Json:
    return {"required": True, "content": {media_type: {"schema": schema}}}


def _operation(
    id: str,
    summary: str,
    guard: _Guard,
    responses: dict[int, Json],
    *errors: int,
    **more: Any,
) -> Json:
    statuses = (*guard.statuses, 431, *errors)
    every = {status: ref("responses", f"Error{status}") for status in statuses} | responses
    return {
        "operationId": id,
        "summary": summary,
        **more,
        "security": list(guard.security),
        "responses": {str(status): every[status] for status in sorted(every)},
    }


def _parameter(location: str, name: str, description: str, schema: Json) -> Json:
    return {
        "name": name,
        "in": location,
        "required": location == "path",
        "description": description,
        "schema": schema,
    }


def _filter(kind: str, name: str) -> Json:
    """One query parameter of a list, by the name that `operate` knows it by."""
    statuses = STATUSES.get(kind)
    parameters: dict[str, tuple[str, Json]] = {
        "limit": (
            "How many at most.",
            {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_LIMIT,
                "default": DEFAULT_LIMIT,
            },
        ),
        "after": ("The `next` of the part before.", ID),
        "event_id": ("The sender's id of the event.", text("An event's id.")),
        "status": ("Only those that stand so.", schema_of(statuses) if statuses else {}),
        "cause": ("Only those that failed this check.", schema_of(statuses) if statuses else {}),
        "duplicate_body": (
            "Only those whose body came before under another id.",
            {"type": "string", "enum": ["true"]},
        ),
        "reference": ("Only those about this object.", text("A reference.")),
    }
    description, schema = parameters[name]
    return _parameter("query", name, description, schema)


# The routes.


def _admin_paths(prefix: str, guard: _Guard) -> Json:
    lists = {
        f"{prefix}/{kind}": {
            "get": _operation(
                f"list_{kind}",
                f"List {_ITEM_NAMES.get(kind, kind)}, the newest first",
                guard,
                {
                    200: _json_content(
                        "A part of the list.", ref("schemas", f"{item_name(kind)}Page")
                    )
                },
                *(422, 503),
                tags=["admin"],
                parameters=[_filter(kind, name) for name in FILTERS[kind]],
            )
        }
        for kind in ITEMS
    }
    actions = {
        f"{prefix}/{kind}/{{id}}/{name}": {
            "post": _action(f"{name}_{kind}", guard, summary, schema)
        }
        for (kind, name), (summary, schema) in _ACTIONS.items()
    }
    openapi = _operation(
        "get_openapi",
        "This document",
        guard,
        {200: _json_content("An OpenAPI 3.1 document.", {"type": "object"})},
        tags=["service"],
    )
    return {**lists, **actions, OPENAPI: {"get": openapi}}


_ACTIONS: Final = {
    ("jobs", "requeue"): (
        f"Queue a job again that is {' or '.join(sorted(REQUEUEABLE))}",
        "Requeued",
    ),
    ("rejections", "verify"): (
        "Verify a kept request again, with the secrets of now, and receive it",
        "ManualRecording",
    ),
    ("deliveries", "accept"): ("Accept a conflict as an event of its own", "ManualRecording"),
}


def _action(id: str, guard: _Guard, summary: str, schema: str) -> Json:
    """What a person does to one thing, with an actor and a reason."""
    return _operation(
        id,
        summary,
        guard,
        {200: _json_content("It is done, and the audit entry is there.", ref("schemas", schema))},
        *(*_BODY_ERRORS, 404, 409, 503),
        tags=["admin"],
        parameters=[_parameter("path", "id", "Its id.", ID)],
        requestBody=_body(ref("schemas", "OperatorAction")),
    )


def _receiving_paths(sources: Mapping[str, Source], settings: Settings, guard: _Guard) -> Json:
    largest = f"The body may have {settings.max_body_bytes} bytes."
    durable = "It is durable: new, known, or in conflict."
    receipt, receipts = ref("schemas", "Receipt"), ref("schemas", "Receipts")
    webhook = _operation(
        "receive_webhook",
        "Receive a webhook from a source",
        _source_guard(sources),
        {
            status: _json_content(durable, {"anyOf": [receipt, receipts]})
            if is_receipt
            else {"description": f"{durable} The sender insists on this answer."}
            for status, is_receipt in _success_statuses(sources)
        },
        *(*_BODY_ERRORS, 400, 404, 503),
        tags=["receiving"],
        description=f"Any content type. {largest} Nothing signed is refused for its content.",
        parameters=[
            _parameter("path", "source", "The source's name.", _source_name_schema(sources))
        ],
        requestBody={"content": {"*/*": {"schema": {}}}},
    )
    ingest = _operation(
        "ingest_event",
        f"Receive an event from an application of your own, as source {INGEST_SOURCE}",
        guard,
        {202: _json_content(durable, receipt)},
        *(*_BODY_ERRORS, 503),
        tags=["receiving"],
        description=largest,
        requestBody=_body(ref("schemas", "Envelope")),
    )
    return {f"{WEBHOOKS}{{source}}": {"post": webhook}, INGEST: {"post": ingest}}


def _success_statuses(sources: Mapping[str, Source]) -> list[tuple[int, bool]]:
    """How what is durable is answered, and whether by a receipt; those with one come last."""
    accepted = [source.preset.success_response for source in sources.values()] or [202]
    return sorted((it, True) if isinstance(it, int) else (it.status, False) for it in set(accepted))


def _source_guard(sources: Mapping[str, Source]) -> _Guard:
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
            "description": (
                f"The signature of source {name}, as the preset {source.preset_name} has it."
            ),
        }
        for name, source in sorted(sources.items())
        if not source.unsigned and (header := _signature_header(source.scheme))
    }


def _signature_header(scheme: Scheme) -> str | None:
    kind, _, name = scheme.at.partition("|")[0].partition(":")
    return name if kind == "header" else None


def _source_name_schema(sources: Mapping[str, Source]) -> Json:
    if sources:
        return {"type": "string", "enum": sorted(sources)}
    return {"type": "string", "pattern": f"^{SOURCE_NAME.pattern}$"}


def _service_paths(*, dev: bool) -> Json:
    health = _operation(
        "get_health",
        "Whether the process is there",
        _PUBLIC,
        {200: _json_content("It is.", HEALTH)},
        tags=["service"],
    )
    readiness = _operation(
        "get_readiness",
        "Whether the ledger can be read",
        _PUBLIC,
        {200: _json_content("It can.", READY), 503: _json_content("It cannot.", NOT_READY)},
        tags=["service"],
    )
    paths: Json = {HEALTHZ: {"get": health}, READYZ: {"get": readiness}}
    if dev:
        found = {200: _json_content("Where to post and where to look.", INDEX)}
        index = _operation("get_index", "Where to go", _PUBLIC, found, tags=["service"])
        paths[INDEX_PATH] = {"get": index}
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
            "schemas": schemas(),
            "responses": {f"Error{status}": _error(status) for status in _ERRORS},
            "securitySchemes": _security_schemes(sources or {}, dev=dev),
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


def _error(status: int) -> Json:
    reason, codes = _ERRORS[status]
    response = _json_content(f"{reason} Codes: {', '.join(codes)}.", ref("schemas", "Error"))
    match status:
        case 401:
            scheme = {"type": "string"}
            response["headers"] = {"WWW-Authenticate": {"schema": scheme}}
        case 503:
            seconds = {"type": "integer", "minimum": 1}
            response["headers"] = {"Retry-After": {"required": True, "schema": seconds}}
    return response


def _security_schemes(sources: Mapping[str, Source], *, dev: bool) -> Json:
    token = {"type": "http", "scheme": "bearer", "description": "An admin token."}
    return ({} if dev else {_TOKEN: token}) | _signatures(sources)
