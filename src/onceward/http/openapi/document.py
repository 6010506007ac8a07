"""The OpenAPI 3.1 document, built from the tables that the code itself uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onceward.http.openapi.schemas import (
    ADMIN_INDEX,
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
from onceward.http.openapi.success import RECORDED, success_statuses, success_text
from onceward.http.paths import INDEX_PATH, OPENAPI
from onceward.http.receive_app import HEALTHZ, INGEST, READYZ, WEBHOOKS
from onceward.model.events import INGEST_SOURCE
from onceward.model.jobs import CANCELLABLE, REQUEUEABLE, FailureType
from onceward.operate.filters import DEFAULT_LIMIT, FILTERS, MAX_LIMIT, STATUSES
from onceward.settings import Settings
from onceward.sources.configure import SOURCE_NAME
from onceward.sources.schemes import Scheme
from onceward.sources.source import Source
from onceward.version import __version__

_TOKEN: Final = "admin_token"  # noqa: S105 - a scheme's name, not a token
_ITEM_NAMES: Final = {"audit": "audit entries", "rejections": "rejected requests"}

# The description and the codes of each error status. Codes may be added; clients should use the
# status first.
_ERRORS: Final[Mapping[int, tuple[str, Collection[str]]]] = {
    400: (
        "The request is malformed, a header is repeated, or a challenge is not supported.",
        ["malformed", "no_question", "repeated_header", "unusable_secret"],
    ),
    401: (
        "The token or the signature is missing or wrong.",
        ["signature_rejected", "unauthorized"],
    ),
    403: (
        "The host name, origin or proxy is not allowed on this open endpoint.",
        ["foreign_host", "foreign_origin", "forwarded"],
    ),
    404: ("The path, source or row does not exist.", ["not_found", "unknown_source"]),
    408: ("The request did not arrive in time.", ["slow_request"]),
    409: ("The current state does not allow the action.", ["not_in_state"]),
    413: ("The body is too large.", ["too_large"]),
    415: (
        "The body has a Content-Encoding, or its content type is not JSON.",
        ["encoded_body", "not_json"],
    ),
    422: (
        "The content is unusable; the message names the field.",
        [
            *("bad_act", "bad_filter", "bad_outcome", "bad_reference", "invalid_json"),
            *("no_event_id", "no_event_type", "no_payload"),
        ],
    ),
    429: (
        "Wrong admin tokens came from this address, or this one came before. Retry later.",
        ["too_many_failures"],
    ),
    431: ("The headers are too many or too large.", ["large_headers"]),
    500: (
        "A handler of an inline source failed; the message is the reason. Retry later.",
        ["Processing failed", "internal"],
    ),
    503: (
        "The ledger, or a handler of an inline source, is unavailable: retry the request.",
        [
            *("busy", "no_handler", "not_recorded", "overloaded"),
            *("paused", "slow", "unavailable"),
        ],
    ),
}
_BODY_ERRORS: Final = (408, 413, 415, 422)


# Parts of an operation.


@dataclass(frozen=True, slots=True)
class _Guard:
    """How a caller authenticates, and the errors for callers that fail to."""

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
    described = {status: ref("responses", f"Error{status}") for status in statuses} | responses
    return {
        "operationId": id,
        "summary": summary,
        **more,
        "security": list(guard.security),
        "responses": {str(status): described[status] for status in sorted(described)},
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
    """Return one query parameter of a list."""
    statuses = STATUSES.get(kind)
    parameters: dict[str, tuple[str, Json]] = {
        "limit": (
            "The maximum number of items.",
            {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_LIMIT,
                "default": DEFAULT_LIMIT,
            },
        ),
        "after": ("The `next` of the previous page.", ID),
        "source": ("Filter by the name of the source.", text("A source.")),
        "handler": ("Filter by the name of a handler that has a job.", text("A handler.")),
        "event_id": ("Filter by the provider's event id.", text("An event's id.")),
        "status": ("Filter by status.", schema_of(statuses) if statuses else {}),
        "cause": ("Filter by the check that failed.", schema_of(statuses) if statuses else {}),
        "duplicate_body": (
            "Filter for events whose body came before under another id.",
            {"type": "string", "enum": ["true"]},
        ),
        "reference": ("Filter by the related object.", text("A reference.")),
        "ordering_key": ("Filter by the ordering key.", text("An ordering key.")),
        "failure_type": ("Filter by why a job failed or was ignored.", schema_of(FailureType)),
        "key": (
            "Filter by the version key, as the list or the payload has it.",
            {"type": "string"},
        ),
        "effect_id": ("Filter for failed jobs that wait for the outcome of an effect.", ID),
        "subject": ("Filter by what was changed, such as job:42.", text("A subject.")),
    }
    description, schema = parameters[name]
    return _parameter("query", name, description, schema)


# The routes.


def _admin_paths(prefix: str, guard: _Guard) -> Json:
    index = _operation(
        "get_admin_index",
        "List the lists",
        guard,
        {200: _json_content("The paths of the lists and of this document.", ADMIN_INDEX)},
        tags=["admin"],
    )
    lists = {
        f"{prefix}/{kind}": {
            "get": _operation(
                f"list_{kind}",
                f"List {_ITEM_NAMES.get(kind, kind)}, newest first",
                guard,
                {
                    200: _json_content(
                        "One page of the list.", ref("schemas", f"{item_name(kind)}Page")
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
        f"{prefix}/{kind}/{{{_subject(kind)['name']}}}/{name}": {
            "post": _action(kind, name, guard, summary, schema)
        }
        for (kind, name), (summary, schema) in _ACTIONS.items()
    }
    openapi = _operation(
        "get_openapi",
        "Get this document",
        guard,
        {200: _json_content("An OpenAPI 3.1 document.", {"type": "object"})},
        tags=["service"],
    )
    job = _operation(
        "get_job",
        "Get a job with the errors and tracebacks of its failed attempts",
        guard,
        {200: _json_content("The job.", ref("schemas", "JobDetail"))},
        *(404, 503),
        tags=["admin"],
        parameters=[_parameter("path", "id", "The job's id.", ID)],
    )
    details = {f"{prefix}/jobs/{{id}}": {"get": job}}
    forget = _operation(
        "forget_watermark",
        "Forget the newest version that a handler applied for a key",
        guard,
        {
            200: _json_content(
                "The action is done and audited.", ref("schemas", "ForgottenWatermark")
            )
        },
        *(*_BODY_ERRORS, 404, 503),
        tags=["admin"],
        requestBody=_body(ref("schemas", "ForgetAction")),
    )
    actions[f"{prefix}/watermarks/forget"] = {"post": forget}
    return {
        f"{prefix}/": {"get": index},
        **lists,
        **details,
        **actions,
        OPENAPI: {"get": openapi},
    }


def _or(statuses: Collection[str]) -> str:
    *most, last = sorted(statuses)
    return f"{', '.join(most)} or {last}"


_ACTIONS: Final = {
    ("jobs", "requeue"): (
        f"Requeue a {_or(REQUEUEABLE)} job",
        "Requeued",
    ),
    ("jobs", "cancel"): (
        f"Cancel a job that is {_or(CANCELLABLE)}",
        "Cancelled",
    ),
    ("events", "route"): ("Create the job of an event for a handler that has none", "RoutedEvent"),
    ("events", "dismiss"): ("End the review of an event as ignored", "Dismissed"),
    ("effects", "resolve"): (
        "Answer whether an effect happened, and queue the jobs that wait for it",
        "ResolvedEffect",
    ),
    ("rejections", "verify"): (
        "Verify a kept request again and record its events",
        "ManualRecording",
    ),
    ("deliveries", "accept"): ("Accept a conflict as a new event", "ManualRecording"),
    ("handlers", "pause"): (
        "Pause a handler: its jobs wait, and senders of its events to an inline source get 503",
        "PauseChange",
    ),
    ("handlers", "resume"): ("Resume a handler: its jobs run again", "PauseChange"),
    ("sources", "pause"): (
        "Pause a source: it still receives, and its jobs wait; senders to an inline one get 503",
        "PauseChange",
    ),
    ("sources", "resume"): ("Resume a source: its jobs run again", "PauseChange"),
}


def _subject(kind: str) -> Json:
    """Return the parameter that names the subject of an action."""
    match kind:
        case "handlers":
            schema = text("A handler. Slashes are sent as they are, not percent-encoded.")
            return _parameter("path", "name", "The handler's name.", schema)
        case "sources":
            schema = {"type": "string", "pattern": f"^{SOURCE_NAME.pattern}$"}
            return _parameter("path", "name", "The source's name.", schema)
    return _parameter("path", "id", "The row's id.", ID)


_ACTION_BODIES: Final = {
    ("effects", "resolve"): "Resolution",
    ("events", "route"): "RouteAction",
    ("jobs", "requeue"): "RequeueAction",
}
"""The schemas of the bodies of actions that may say more than an actor and a reason."""


def _action(kind: str, name: str, guard: _Guard, summary: str, schema: str) -> Json:
    """Return the operation of an operator action."""
    return _operation(
        f"{name}_{kind}",
        summary,
        guard,
        {200: _json_content("The action is done and audited.", ref("schemas", schema))},
        *(*_BODY_ERRORS, 404, 409, 503),
        tags=["admin"],
        parameters=[_subject(kind)],
        requestBody=_body(ref("schemas", _ACTION_BODIES.get((kind, name), "OperatorAction"))),
    )


def _receiving_paths(sources: Mapping[str, Source], settings: Settings, guard: _Guard) -> Json:
    largest = f"The body may have up to {settings.max_body_bytes} bytes."
    receipt, receipts = ref("schemas", "Receipt"), ref("schemas", "Receipts")
    has_inline = any(source.is_inline for source in sources.values())
    bodies = [receipt, receipts, *([ref("schemas", "Processed")] if has_inline else [])]
    webhook = _operation(
        "receive_webhook",
        "Receive a webhook",
        _source_guard(sources),
        {
            status: _json_content(success_text(status, sources), {"anyOf": bodies})
            if is_receipt
            else {"description": success_text(status, sources)}
            for status, is_receipt in success_statuses(sources)
        },
        *(*_BODY_ERRORS, 400, 404, *([500] if has_inline else []), 503),
        tags=["receiving"],
        description=(
            f"Any content type. {largest} A signed event with a usable id is never refused for its "
            "content."
        ),
        parameters=[
            _parameter("path", "source", "The name of a source.", _source_name_schema(sources))
        ],
        requestBody={"content": {"*/*": {"schema": {}}}},
    )
    ingest = _operation(
        "ingest_event",
        f"Receive an event of your own, as source {INGEST_SOURCE}",
        guard,
        {202: _json_content(RECORDED, receipt)},
        *(*_BODY_ERRORS, 503),
        tags=["receiving"],
        description=largest,
        requestBody=_body(ref("schemas", "Envelope")),
    )
    return {f"{WEBHOOKS}{{source}}": {"post": webhook}, INGEST: {"post": ingest}}


def _source_guard(sources: Mapping[str, Source]) -> _Guard:
    """Return the guard of the webhooks: a signature for each source that has one."""
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
            "description": f"The signature of source {name} (preset {source.preset_name}).",
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
        "Check that the process runs",
        _PUBLIC,
        {200: _json_content("The process runs.", HEALTH)},
        tags=["service"],
    )
    readiness = _operation(
        "get_readiness",
        "Check that the ledger responds",
        _PUBLIC,
        {
            200: _json_content("The ledger responds.", READY),
            503: _json_content("The ledger does not respond.", NOT_READY),
        },
        tags=["service"],
    )
    paths: Json = {HEALTHZ: {"get": health}, READYZ: {"get": readiness}}
    if dev:
        responses = {200: _json_content("Where to post events and which lists to read.", INDEX)}
        index = _operation(
            "get_index", "List the entry points", _PUBLIC, responses, tags=["service"]
        )
        paths[INDEX_PATH] = {"get": index}
    return paths


# The document.


def document(
    *, settings: Settings, sources: Mapping[str, Source] | None, prefix: str, dev: bool
) -> Json:
    """Return the document of the API as served, with the admin API below `prefix`.

    With `dev`, no route needs a token. `sources` is None for an admin API mounted on its own, which
    does not receive.
    """
    guard = _Guard((), (400, 403)) if dev else _Guard([{_TOKEN: []}], (400, 401, 429))
    paths = _admin_paths(prefix, guard)
    if sources is not None:
        paths = _receiving_paths(sources, settings, guard) | paths | _service_paths(dev=dev)
    return {
        "openapi": "3.1.0",
        "info": _info(settings),
        "servers": [{"url": ".", "description": "The folder of this document."}],
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
        "summary": "A webhook inbox: every event is recorded once, and every effect happens once.",
        "description": (
            "Every response is JSON. HEAD works wherever GET does. Other methods get 405, other "
            f"paths 404. A request may have up to {settings.max_headers} headers, and up to "
            f"{settings.max_header_bytes} bytes of target and headers."
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
        case 500:
            seconds = {"type": "integer", "minimum": 1}
            response["headers"] = {"Retry-After": {"schema": seconds}}
        case 429 | 503:
            seconds = {"type": "integer", "minimum": 1}
            response["headers"] = {"Retry-After": {"required": True, "schema": seconds}}
    return response


def _security_schemes(sources: Mapping[str, Source], *, dev: bool) -> Json:
    token = {"type": "http", "scheme": "bearer", "description": "An admin token."}
    return ({} if dev else {_TOKEN: token}) | _signatures(sources)
