"""The admin API: lists, and actions that need an actor and a reason."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from onceward.http.auth import Authenticator
from onceward.http.bodies import BodyReader, Disconnected, bounded_headers, require_json
from onceward.http.errors import MAPPED, HttpError
from onceward.http.paths import OPENAPI, no_such_path, require_plain_path, root_path
from onceward.http.proxies import Proxies
from onceward.http.request_log import RequestLog
from onceward.http.responses import INTERNAL_ERROR, Response, error_response, json_response
from onceward.model.admin import ManualRecording, OperatorAction, Pausable, PauseChange
from onceward.model.effects import MAX_RESULT_BYTES, Resolution, ResolvedOutcome
from onceward.model.events import invalid_text_reason
from onceward.operate.filters import LISTS
from onceward.operate.operator import Operator
from onceward.runtime.clock import Clock
from onceward.runtime.suggest import suggest_or_list
from onceward.settings import Settings

ADMIN: Final = "/admin"
RESPONSE_TIMEOUT_SECONDS: Final = 10.0
B = TypeVar("B", bound="_ActionBody")
_MAX_SHOWN: Final = 40
"""The characters of an unknown name that an error shows."""
_DENIED: Final = (401, 403, 429)
"""Statuses of requests that are logged: their senders may have no business here."""


class _ActionBody(msgspec.Struct):
    actor: str = ""
    reason: str = ""


class _RequeueBody(_ActionBody):
    even_if_stale: bool = False


class _RouteBody(_ActionBody):
    handler: str = ""


class _ForgetBody(_ActionBody):
    handler: str = ""
    key: str | None = None


class _ResolveBody(_ActionBody):
    outcome: str = ""
    call_no: int | float | None = None
    """JSON has one kind of number: 1.0 is 1."""
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_BODIES: Final[Mapping[type[_ActionBody], str]] = {
    _ActionBody: "Send a JSON object with the strings actor and reason.",
    _RequeueBody: (
        "Send a JSON object with the strings actor and reason, and even_if_stale as true or false."
    ),
    _RouteBody: "Send a JSON object with the strings actor, reason and handler.",
    _ForgetBody: "Send a JSON object with the strings actor, reason, handler and key.",
    _ResolveBody: (
        "Send a JSON object with the strings actor, reason and outcome, the number call_no, and "
        "any result."
    ),
}
"""The advice for a body that cannot be decoded."""


class _ContainedApp(Starlette):
    """An app that logs errors itself, redacted, instead of passing them to the server's log."""

    def __init__(self, request_log: RequestLog, **options: Any) -> None:
        super().__init__(**options)
        self._request_log = request_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            require_plain_path(scope)
            await super().__call__(scope, receive, send)
        except HttpError as error:  # of the path: other errors are handled inside
            await error_response(error).send(send)
        except Exception as error:  # noqa: BLE001 - the client already has its 500
            self._request_log.failed(scope, error)


class AdminApp:
    """The routes below ``/admin`` and the OpenAPI document. Every route authenticates first."""

    def __init__(
        self,
        *,
        operator: Operator,
        authenticator: Authenticator,
        settings: Settings,
        document: Callable[[], Mapping[str, object]],
        clock: Clock,
    ) -> None:
        self._operator = operator
        self._authenticator = authenticator
        self._settings = settings
        self._bodies = BodyReader(settings)
        self._request_log = RequestLog(clock, Proxies(settings.trusted_proxies))
        self._document = functools.cache(lambda: json_response(200, document()))

    def app(self, prefix: str = ADMIN) -> ASGIApp:
        """Return the ASGI application with its routes below `prefix`."""
        api = _ContainedApp(
            self._request_log,
            routes=[
                Route(OPENAPI, self._describe, methods=["GET"]),
                Route(f"{prefix}/", self._index, methods=["GET"]),
                Route(f"{prefix}/{{kind}}", self._list, methods=["GET"]),
                Route(f"{prefix}/jobs/{{id}}", self._job, methods=["GET"]),
                Route(f"{prefix}/jobs/{{id}}/requeue", self._requeue, methods=["POST"]),
                Route(f"{prefix}/jobs/{{id}}/cancel", self._cancel, methods=["POST"]),
                Route(f"{prefix}/events/{{id}}/route", self._route, methods=["POST"]),
                Route(f"{prefix}/events/{{id}}/dismiss", self._dismiss, methods=["POST"]),
                Route(f"{prefix}/effects/{{id}}/resolve", self._resolve, methods=["POST"]),
                Route(f"{prefix}/rejections/{{id}}/verify", self._verify, methods=["POST"]),
                Route(f"{prefix}/deliveries/{{id}}/accept", self._accept, methods=["POST"]),
                Route(f"{prefix}/watermarks/forget", self._forget, methods=["POST"]),
                *self._pause_routes(prefix),
            ],
            exception_handlers={
                404: _no_route,
                405: _wrong_method,
                Disconnected: _disconnected,
                **dict.fromkeys(MAPPED, self._mapped_error),
                Exception: _internal_error,
            },
        )
        api.router.redirect_slashes = False  # a redirect would trust the request's Host
        return api

    def _pause_routes(self, prefix: str) -> list[Route]:
        # The name of a handler may contain slashes. They are sent as they are: paths are plain.
        paths = {Pausable.HANDLER: "handlers/{name:path}", Pausable.SOURCE: "sources/{name}"}
        return [
            Route(f"{prefix}/{path}/{verb}", functools.partial(serve, kind), methods=["POST"])
            for kind, path in paths.items()
            for verb, serve in (("pause", self._pause), ("resume", self._resume))
        ]

    def _authenticate(self, request: Request) -> None:
        headers = bounded_headers(request.scope, self._settings)
        self._authenticator.authenticate(request.scope, headers)

    async def _describe(self, request: Request) -> StarletteResponse:
        self._authenticate(request)
        return _starlette(self._document())

    async def _index(self, request: Request) -> StarletteResponse:
        """List the lists below the path of the request, which ends with a slash."""
        self._authenticate(request)
        index = {
            "message": "The admin API. Look at the lists. The document has filters and actions.",
            "look": [f"{request.scope['path']}{kind}" for kind in LISTS],
            "document": f"{root_path(request.scope)}{OPENAPI}",
        }
        return _starlette(json_response(200, index))

    async def _list(self, request: Request) -> StarletteResponse:
        self._authenticate(request)
        kind = request.path_params["kind"]
        if kind not in LISTS:
            message = f"There is no list of that name. Use one of {', '.join(LISTS)}."
            raise HttpError(404, "not_found", message)
        parameters = request.query_params
        if len(parameters.multi_items()) != len(parameters):
            raise HttpError(
                422, "bad_filter", "A filter occurs more than once. Send each filter once."
            )
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            return _starlette(json_response(200, await self._operator.page(kind, parameters)))

    async def _job(self, request: Request) -> StarletteResponse:
        self._authenticate(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            job = await self._operator.job(request.path_params["id"])
        return _starlette(json_response(200, job))

    async def _requeue(self, request: Request) -> StarletteResponse:
        parsed, action = await self._action_body(request, _RequeueBody)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            requeued = await self._operator.requeue(
                request.path_params["id"], action, even_if_stale=parsed.even_if_stale
            )
        return _starlette(
            json_response(
                200,
                {
                    "ok": True,
                    "id": requeued.job,
                    "status": "queued",
                    "available_at": requeued.available_at,
                    "note": requeued.note,
                    "audit": requeued.audit,
                },
            )
        )

    async def _cancel(self, request: Request) -> StarletteResponse:
        action = await self._action(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            cancelled = await self._operator.cancel(request.path_params["id"], action)
        return _starlette(
            json_response(
                200,
                {
                    "ok": True,
                    "id": cancelled.job,
                    "status": "cancelled",
                    "finished_at": cancelled.finished_at,
                    "audit": cancelled.audit,
                },
            )
        )

    async def _route(self, request: Request) -> StarletteResponse:
        body, action = await self._action_body(request, _RouteBody)
        if not body.handler:
            raise HttpError(422, "bad_act", _BODIES[_RouteBody])
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            routed = await self._operator.route(request.path_params["id"], body.handler, action)
        return _starlette(
            json_response(
                200,
                {
                    "ok": True,
                    "id": routed.event,
                    "job_id": routed.job,
                    "status": "queued",
                    "available_at": routed.available_at,
                    "note": routed.note,
                    "audit": routed.audit,
                },
            )
        )

    async def _dismiss(self, request: Request) -> StarletteResponse:
        action = await self._action(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            dismissed = await self._operator.dismiss(request.path_params["id"], action)
        return _starlette(
            json_response(
                200,
                {
                    "ok": True,
                    "id": dismissed.event,
                    "processing_state": "ignored",
                    "processed_at": dismissed.processed_at,
                    "audit": dismissed.audit,
                },
            )
        )

    async def _resolve(self, request: Request) -> StarletteResponse:
        body, action = await self._action_body(request, _ResolveBody)
        resolution = _parse_resolution(body)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            resolved = await self._operator.resolve(request.path_params["id"], resolution, action)
        return _starlette(
            json_response(
                200,
                {
                    "ok": True,
                    "id": resolved.effect,
                    "status": resolved.status,
                    "requeued": resolved.requeued,
                    "audit": resolved.audit,
                },
            )
        )

    async def _forget(self, request: Request) -> StarletteResponse:
        body, action = await self._action_body(request, _ForgetBody)
        if not body.handler or body.key is None:
            raise HttpError(422, "bad_act", _BODIES[_ForgetBody])
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            forgotten = await self._operator.forget_watermark(body.handler, body.key, action)
        result = {"ok": True, "watermark": forgotten.watermark, "audit": forgotten.audit}
        return _starlette(json_response(200, result))

    async def _pause(self, kind: Pausable, request: Request) -> StarletteResponse:
        action = await self._action(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            return _changed(await self._operator.pause(kind, request.path_params["name"], action))

    async def _resume(self, kind: Pausable, request: Request) -> StarletteResponse:
        action = await self._action(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            return _changed(await self._operator.resume(kind, request.path_params["name"], action))

    async def _verify(self, request: Request) -> StarletteResponse:
        action = await self._action(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            recording = await self._operator.verify_again(request.path_params["id"], action)
        return _recorded(recording)

    async def _accept(self, request: Request) -> StarletteResponse:
        action = await self._action(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            return _recorded(
                await self._operator.accept_conflict(request.path_params["id"], action)
            )

    async def _action(self, request: Request) -> OperatorAction:
        """Return who acts and why. Raises RequestRefused."""
        return (await self._action_body(request, _ActionBody))[1]

    async def _action_body(self, request: Request, kind: type[B]) -> tuple[B, OperatorAction]:
        """Return the body of an action, and who acts and why. Raises RequestRefused."""
        headers = bounded_headers(request.scope, self._settings)
        authenticated_as = self._authenticator.authenticate(request.scope, headers)
        _require_no_query(request)
        require_json(headers)
        body = self._bodies.start(request.scope, headers)
        await self._bodies.read(body, request.receive)
        parsed = _parse_body(body.take(), kind)
        return parsed, _parse_action(parsed, authenticated_as)

    async def _mapped_error(self, request: Request, error: Exception) -> StarletteResponse:
        if isinstance(error, HttpError) and error.status in _DENIED:
            self._request_log.refused(request.scope, error)
        return _starlette(error_response(error))


def _recorded(recording: ManualRecording) -> StarletteResponse:
    events = [
        {"id": str(receipt.event), "outcome": receipt.outcome} for receipt in recording.events
    ]
    return _starlette(json_response(200, {"ok": True, "events": events, "audit": recording.audit}))


def _changed(change: PauseChange) -> StarletteResponse:
    result = {"ok": True, "name": change.name, "paused_at": change.paused_at}
    return _starlette(json_response(200, {**result, "note": change.note, "audit": change.audit}))


def _parse_body(body: bytes, kind: type[B]) -> B:
    """Decode the body of an action. Raises HttpError (422).

    An unknown member is refused: an operator who misspells one wants another action.
    """
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        _require_known(members, kind.__struct_fields__)
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(422, "bad_act", _BODIES[kind]) from error


def _require_known(members: Iterable[str], known: Sequence[str]) -> None:
    for name in members:
        if name not in known:
            advice = suggest_or_list(name[:_MAX_SHOWN], known, "the members are")
            message = f"unknown member {name[:_MAX_SHOWN]!r}{advice}"
            raise HttpError(422, "bad_act", message)


def _require_no_query(request: Request) -> None:
    for name in request.query_params:
        message = f"unknown query parameter {name[:_MAX_SHOWN]!r}; send it in the JSON body"
        raise HttpError(422, "bad_act", message)


def _parse_resolution(body: _ResolveBody) -> Resolution:
    """Return a person's answer about an effect. Raises HttpError (422)."""
    if body.outcome not in list(ResolvedOutcome):
        message = f"outcome must be {' or '.join(ResolvedOutcome)}."
        raise HttpError(422, "bad_outcome", message)
    outcome = ResolvedOutcome(body.outcome)
    result = None if isinstance(body.result, msgspec.UnsetType) else bytes(body.result)
    if outcome is ResolvedOutcome.DID_NOT_HAPPEN and (body.call_no is None or result is not None):
        message = (
            "did_not_happen needs the call_no that GET /admin/effects shows, and has no result."
        )
        raise HttpError(422, "bad_outcome", message)
    text = None if result in (None, b"null") else _json_text(result)
    return Resolution(outcome, _whole(body.call_no), text)


def _whole(number: float | None) -> int | None:
    """Return a number without a fraction. Raises HttpError (422)."""
    if number is None or number == int(number):
        return None if number is None else int(number)
    raise HttpError(422, "bad_act", _BODIES[_ResolveBody])


def _json_text(result: bytes) -> str:
    """Return a result as the JSON that a call would store. Raises HttpError (422)."""
    try:
        text = msgspec.json.encode(msgspec.json.decode(result))
    except (ValueError, RecursionError) as error:
        raise HttpError(422, "bad_outcome", "result is not valid JSON.") from error
    if len(text) > MAX_RESULT_BYTES:  # numbers may be written shorter than they are stored
        message = f"result is {len(text)} bytes long; the limit is {MAX_RESULT_BYTES}."
        raise HttpError(422, "bad_outcome", message)
    return text.decode()


def _parse_action(parsed: _ActionBody, authenticated_as: str) -> OperatorAction:
    """Return who acts and why, from the body of an action. Raises HttpError (422)."""
    for field in ("actor", "reason"):
        text = getattr(parsed, field).strip()
        fault = invalid_text_reason(text) if text else "is missing"
        if fault:
            raise HttpError(422, "bad_act", f"{field} {fault}. Send actor and reason.")
    return OperatorAction(parsed.actor.strip(), authenticated_as, parsed.reason.strip())


# Error handlers.


async def _no_route(request: Request, _: Exception) -> StarletteResponse:
    scope = request.scope
    advice = f"The admin API is described at GET {root_path(scope)}{OPENAPI}."
    return _starlette(error_response(no_such_path(scope, advice)))


async def _wrong_method(_: Request, error: Exception) -> StarletteResponse:
    allow = getattr(error, "headers", None) or {}
    refused = HttpError(
        405,
        "wrong_method",
        "This path does not support the method. See the Allow header.",
        headers=tuple(allow.items()),
    )
    return _starlette(error_response(refused))


async def _disconnected(_: Request, __: Exception) -> StarletteResponse:
    return StarletteResponse(status_code=400)  # the client has disconnected and cannot read it


async def _internal_error(_: Request, __: Exception) -> StarletteResponse:
    return _starlette(INTERNAL_ERROR)


def _starlette(response: Response) -> StarletteResponse:
    converted = StarletteResponse(response.body, response.status)
    converted.raw_headers = response.all_headers
    return converted
