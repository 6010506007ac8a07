"""Common mistakes of an app that mounts the inbox are named, in the log or in an error."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from onceward import ConfigurationError, Inbox
from onceward.http.responses import Receive, Scope, Send
from tests.integration.running import make_inbox, partner_webhook


@asynccontextmanager
async def client(app: Any, inbox: Inbox) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as http:
        yield http
    if inbox._mounted is not None:
        await inbox._mounted.close()


async def post_signed(http: httpx.AsyncClient, path: str) -> httpx.Response:
    sent = partner_webhook("evt_1")
    return await http.post(path, content=sent.body, headers=sent.headers)


CLIENT = " (from 127.0.0.1)"


def http_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "onceward.http"]


class EatsTheBody:
    """A middleware that reads the body and passes on what is left of it."""

    def __init__(self, app: Any, left: bytes) -> None:
        self._app = app
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        left = [{"type": "http.request", "body": self._left, "more_body": True}]

        async def receive_rest() -> Any:
            return left.pop() if left else await asyncio.Event().wait()

        await self._app(scope, receive_rest, send)


@pytest.mark.parametrize(
    ("left", "hint"),
    [
        (
            b"",
            (
                " No byte of the body arrived: if a middleware of your app reads the body, it must "
                "pass it on."
            ),
        ),
        (b"{", ""),
    ],
)
async def test_a_middleware_that_eats_the_body_is_named(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, left: bytes, hint: str
) -> None:
    inbox = make_inbox(sqlite_url, body_timeout_seconds=0.1)
    async with client(EatsTheBody(inbox.asgi(), left), inbox) as http:
        response = await post_signed(http, "/webhooks/partner")
    message = "The request did not arrive within 0.1 seconds. Send it again."
    assert (response.status_code, response.json()["message"]) == (408, message)
    assert http_lines(caplog) == [f"/webhooks/partner: 408: {message}{hint}{CLIENT}"]


async def test_a_slash_at_the_end_is_named(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = make_inbox(sqlite_url)
    async with client(inbox.asgi(), inbox) as http:
        response = await post_signed(http, "/webhooks/partner/")
        assert response.status_code == 404
        assert "slash" not in response.text
        await post_signed(http, "/webhooks/unknown/")
    known, unknown = http_lines(caplog)
    assert known.endswith(f": 404: no source has this name; remove the slash at the end{CLIENT}")
    assert "slash" not in unknown


@pytest.mark.parametrize(("prefix", "is_named"), [("/", True), ("/hooks", False), (None, False)])
async def test_a_mount_that_hides_later_routes_is_named(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, prefix: str | None, *, is_named: bool
) -> None:
    inbox = make_inbox(sqlite_url)
    app: Any = inbox.asgi()
    if prefix is not None:
        app = FastAPI()
        app.mount(prefix, inbox.asgi())

        @app.get("/hooks/orders")
        async def orders() -> None: ...

    async with client(app, inbox) as http:
        response = await http.get("/hooks/orders")
    assert response.status_code == 404
    assert "mounted" not in response.text
    (line,) = http_lines(caplog)
    hint = (
        'The inbox is mounted at "/", which hides every route that is added after it: mount it '
        'last, or at "/hooks".'
    )
    assert (hint in line) is is_named


def test_an_inbox_is_no_router(sqlite_url: str) -> None:
    app, inbox = FastAPI(), Inbox(sqlite_url)
    with pytest.raises(AttributeError) as raised:
        app.include_router(inbox)  # type: ignore[arg-type] # the mistake
    assert 'app.mount("/hooks", inbox.asgi())' in str(raised.value)
    with pytest.raises(AttributeError, match=re.escape("'_contains_router'; mount it: app.mount")):
        inbox._contains_router  # type: ignore[attr-defined] # noqa: B018 - as FastAPI does


async def test_a_served_inbox_names_the_app_to_serve(sqlite_url: str) -> None:
    inbox: Any = Inbox(sqlite_url)
    with pytest.raises(ConfigurationError, match="serve the app that mounts it, such as `uvicorn"):
        inbox()  # as uvicorn does at start
    with pytest.raises(ConfigurationError, match="with parentheses"):
        inbox({"type": "http", "root_path": "/hooks"})
    async with client(inbox, inbox) as http:
        with pytest.raises(ConfigurationError, match="serve the app that mounts it"):
            await http.get("/healthz")


async def test_a_second_process_on_sqlite_names_the_variable(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_inbox(sqlite_url), make_inbox(sqlite_url)
    async with client(first.asgi(), first) as http, client(second.asgi(), second) as other:
        assert (await http.get("/healthz")).status_code == 200
        assert (await other.get("/healthz")).status_code == 503
    (line,) = http_lines(caplog)
    assert line.endswith("(ONCEWARD_DATABASE_URL=postgresql://…, or --database).")


@pytest.mark.parametrize(
    ("mistake", "call"),
    [("asgi", "inbox.asgi()"), ("admin_asgi", "inbox.admin_asgi()"), ("", "inbox.asgi()")],
)
async def test_a_mount_without_parentheses_names_the_call(
    sqlite_url: str, mistake: str, call: str
) -> None:
    inbox: Any = Inbox(sqlite_url)
    app = FastAPI()
    app.mount("/hooks", getattr(inbox, mistake) if mistake else inbox)
    async with client(app, inbox) as http:
        with pytest.raises(ConfigurationError, match=re.escape(f"mount {call}, with parentheses")):
            await http.get("/hooks/healthz")


def test_a_mounted_app_is_no_router(sqlite_url: str) -> None:
    app, router = FastAPI(), Inbox(sqlite_url).asgi()
    with pytest.raises(AttributeError) as raised:
        app.include_router(router)  # type: ignore[arg-type] # the mistake
    assert str(raised.value).startswith("this is an ASGI app, not a router: it has no '")
    assert str(raised.value).endswith('; mount it: app.mount("/hooks", inbox.asgi())')
    assert not hasattr(router, "__wrapped__")


LACKING = [
    ("post", '; write @inbox.on("event.type", source="…") above a handler'),
    ("start", ": a mounted inbox opens itself at its first request, and `onceward serve app"),
    ("run", ": run `onceward serve app.py`, or `onceward work app.py` beside a mounted inbox"),
    ("router", '; mount inbox.asgi() in your app: app.mount("/hooks", inbox.asgi())'),
    ("sourc", "; did you mean 'source'?"),
    (
        "colour",
        (
            "; it has admin_asgi, asgi, at_start, effect, forward, on, on_batch, retire, "
            "service, source, sources"
        ),
    ),
]


def test_a_name_that_an_inbox_lacks_is_explained(
    sqlite_url: str, subtests: pytest.Subtests
) -> None:
    for name, advice in LACKING:
        with subtests.test(name):
            inbox = Inbox(sqlite_url)
            with pytest.raises(AttributeError) as raised:
                getattr(inbox, name)
            assert str(raised.value).startswith(f"Inbox has no {name!r}{advice}")
            assert not hasattr(inbox, "_colour")


async def test_an_inbox_is_no_context_manager(sqlite_url: str) -> None:
    inbox: Any = Inbox(sqlite_url)
    with pytest.raises(ConfigurationError, match="`async with inbox` is not needed: a mounted"):
        async with inbox:
            pass
