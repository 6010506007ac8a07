"""The admin API: lists, and acts with an actor and a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from onceward.errors import LedgerUnavailable, NotFound, NotInState, RequestRefused, StoreError
from onceward.http.auth import Access
from onceward.http.bodies import BodyReader, Disconnected, bounded_headers, require_json
from onceward.http.errors import HttpError
from onceward.http.openapi.document import OPENAPI
from onceward.http.request_log import INTERNAL, RequestLog
from onceward.http.responses import Answer, answer, error_response
from onceward.model.admin import ManualRecording, OperatorAction
from onceward.model.events import invalid_text_reason
from onceward.operate.filters import LISTS
from onceward.operate.operator import Operator
from onceward.runtime.clock import Clock
from onceward.settings import Settings

ADMIN: Final = "/admin"
ANSWER_SECONDS: Final = 10.0


class _Reason(msgspec.Struct):
    actor: str = ""
    reason: str = ""


class _Contained(Starlette):
    """An application that lets no error out: it was answered, and its text is not for the log."""

    def __init__(self, complaints: RequestLog, **given: Any) -> None:
        super().__init__(**given)
        self._complaints = complaints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - as it says
            self._complaints.failed(scope, error)


class AdminApi:
    """The routes below ``/admin``, and what describes them; each asks who is there first."""

    def __init__(
        self,
        *,
        operator: Operator,
        access: Access,
        settings: Settings,
        document: Mapping[str, object],
        clock: Clock,
    ) -> None:
        self._operator = operator
        self._access = access
        self._settings = settings
        self._bodies = BodyReader(settings)
        self._complaints = RequestLog(clock)
        self._document = answer(200, document)

    def app(self, prefix: str = ADMIN) -> ASGIApp:
        """An ASGI application, with its routes below `prefix`."""
        api = _Contained(
            self._complaints,
            routes=[
                Route(OPENAPI, self._describe, methods=["GET"]),
                Route(f"{prefix}/{{kind}}", self._list, methods=["GET"]),
                Route(f"{prefix}/jobs/{{id}}/requeue", self._requeue, methods=["POST"]),
                Route(f"{prefix}/rejections/{{id}}/verify", self._verify, methods=["POST"]),
                Route(f"{prefix}/deliveries/{{id}}/accept", self._accept, methods=["POST"]),
            ],
            exception_handlers={
                404: _not_found,
                405: _wrong_method,
                RequestRefused: _refused,
                NotFound: _gone,
                NotInState: _conflict,
                StoreError: _store_trouble,
                TimeoutError: _store_trouble,
                Disconnected: _disconnected,
                Exception: _internal,
            },
        )
        api.router.redirect_slashes = False  # it would redirect to whatever Host the request names
        return api

    async def _describe(self, request: Request) -> Response:
        self._access.authenticate(bounded_headers(request.scope, self._settings))
        return _response(self._document)

    async def _list(self, request: Request) -> Response:
        self._access.authenticate(bounded_headers(request.scope, self._settings))
        kind = request.path_params["kind"]
        if kind not in LISTS:
            message = f"There is no such list; there are {', '.join(LISTS)}."
            raise HttpError(404, "not_found", message)
        given = request.query_params
        if len(given.multi_items()) != len(given):
            raise HttpError(422, "bad_filter", "A filter is given more than once.")
        async with asyncio.timeout(ANSWER_SECONDS):
            return _response(answer(200, await self._operator.page(kind, given)))

    async def _requeue(self, request: Request) -> Response:
        act = await self._act(request)
        async with asyncio.timeout(ANSWER_SECONDS):
            requeued = await self._operator.requeue(request.path_params["id"], act)
        return _response(
            answer(
                200,
                {
                    "ok": True,
                    "id": requeued.job,
                    "status": "queued",
                    "available_at": requeued.available_at,
                    "audit": requeued.audit,
                },
            )
        )

    async def _verify(self, request: Request) -> Response:
        act = await self._act(request)
        async with asyncio.timeout(ANSWER_SECONDS):
            return _taken(await self._operator.verify_again(request.path_params["id"], act))

    async def _accept(self, request: Request) -> Response:
        act = await self._act(request)
        async with asyncio.timeout(ANSWER_SECONDS):
            return _taken(await self._operator.accept_conflict(request.path_params["id"], act))

    async def _act(self, request: Request) -> OperatorAction:
        """Who acts, and why. Raises RequestRefused."""
        headers = bounded_headers(request.scope, self._settings)
        name = self._access.authenticate(headers)
        require_json(headers)
        return _act(await self._bodies.read(headers, request.receive), name)


def _taken(taken: ManualRecording) -> Response:
    events = [{"id": str(it.event), "outcome": it.outcome} for it in taken.events]
    return _response(answer(200, {"ok": True, "events": events, "audit": taken.audit}))


def _act(body: bytes, authenticated_as: str) -> OperatorAction:
    """Read who acts and why. Raises RequestRefused (422)."""
    try:
        given = msgspec.json.decode(body, type=_Reason)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = "Send a JSON object with actor and reason, both texts."
        raise HttpError(422, "bad_act", message) from error
    for field in ("actor", "reason"):
        text = getattr(given, field).strip()
        fault = "is missing" if not text else invalid_text_reason(text)
        if fault:
            raise HttpError(422, "bad_act", f"{field} {fault}")
    return OperatorAction(given.actor.strip(), authenticated_as, given.reason.strip())


async def _internal(_: Request, __: Exception) -> Response:
    return _response(INTERNAL)


def _response(found: Answer) -> Response:
    response = Response(found.body, found.status)
    response.raw_headers = found.all_headers
    return response


async def _not_found(_: Request, __: Exception) -> Response:
    return _response(error_response(HttpError(404, "not_found", "There is nothing here.")))


async def _wrong_method(_: Request, error: Exception) -> Response:
    allow = getattr(error, "headers", None) or {}
    refused = HttpError(
        405, "wrong_method", "This method cannot be used here.", headers=tuple(allow.items())
    )
    return _response(error_response(refused))


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)  # noqa: S101 - what it is registered for
    return _response(error_response(error))


async def _gone(_: Request, error: Exception) -> Response:
    return _response(error_response(HttpError(404, "not_found", str(error))))


async def _conflict(_: Request, error: Exception) -> Response:
    return _response(error_response(HttpError(409, "not_in_state", str(error))))


async def _disconnected(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


async def _store_trouble(_: Request, __: Exception) -> Response:
    return _response(error_response(LedgerUnavailable("The ledger cannot be used now.")))
