"""The OpenAPI document describes the service, and the service behaves as described."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

import onceward
from onceward.errors import RequestRefused
from onceward.http import receive_app
from onceward.http.admin_app import ADMIN
from onceward.http.errors import HttpError, status_of
from onceward.http.openapi.document import document
from onceward.http.paths import INDEX_PATH, OPENAPI
from onceward.operate.filters import LISTS
from onceward.settings import Settings
from support.processes import eventually
from tests.described_service import (
    BEARER,
    IGNORE_RANDOM,
    PUBLIC,
    TOKEN,
    UNHURRIED,
    Case,
    Document,
    aim,
    closed_service,
    described,
    open_service,
    schema_of,
)
from tests.integration.running import RunningInbox, make_inbox, partner_webhook

API_PAGE: Final = Path(__file__).parents[2] / "docs" / "api.md"
ACTION: Final = {"actor": "ann", "reason": "because"}
PAUSING: Final = ("pause", "resume")
ADMIN_TOKEN: Final[list[Document]] = [{"admin_token": []}]

OPEN: Final = described(dev=True)
CLOSED: Final = described(dev=False)
open_api = schema_of(OPEN, boundaries=False)
pytestmark = IGNORE_RANDOM


@pytest.fixture(scope="module", params=["sqlite"])  # schemathesis needs a parameter in the name
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """Run a service in dev mode."""
    with open_service(f"sqlite:///{tmp_path_factory.mktemp('open') / 'onceward.db'}") as running:
        yield running


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """Run a service in production mode, with one token holder."""
    with closed_service(tmp_path_factory.mktemp("closed")) as running:
        yield running


@open_api.parametrize()
@UNHURRIED
def test_every_response_is_described(case: Case, service: RunningInbox) -> None:
    aim(case, service)
    case.call_and_validate(base_url=service.address)


def test_without_a_token_only_public_routes_respond(closed: RunningInbox) -> None:
    for path, operations in CLOSED["paths"].items():
        for method, operation in operations.items():
            target = path.format(id="1", name="credit", source="lab")
            response = closed.http.request(method, target, json={})
            is_refused = (response.status_code, response.json().get("error")) == (
                401,
                "unauthorized",
            )
            assert is_refused == (operation["operationId"] not in PUBLIC), (method, path)


def test_only_webhooks_and_health_checks_need_no_token() -> None:
    operations = [op for path in CLOSED["paths"].values() for op in path.values()]
    needs = {operation["operationId"]: operation.get("security") for operation in operations}
    assert len(needs) == len(operations) > len(PUBLIC)
    assert {name for name, security in needs.items() if security != ADMIN_TOKEN} == PUBLIC


# The document and the service have the same routes.


def test_the_document_is_valid() -> None:
    for each in (OPEN, CLOSED):
        schema_of(each).validate()


def test_the_service_serves_its_own_document(service: RunningInbox, closed: RunningInbox) -> None:
    assert service.http.get(OPENAPI).json() == OPEN
    assert closed.http.get(OPENAPI, headers=BEARER).json() == CLOSED
    assert closed.http.get(OPENAPI).status_code == 401


def test_the_document_has_the_routes_and_methods_of_the_service(service: RunningInbox) -> None:
    documented = {
        path: {method.upper() for method in operations}
        for path, operations in OPEN["paths"].items()
    }
    assert documented == {path: methods_at(service, path) for path in paths_of(service)}


def paths_of(service: RunningInbox) -> set[str]:
    """Return every path that the code defines, for the admin API and for receiving."""
    admin = service.service.admin_app(prefix=ADMIN)
    assert isinstance(admin, Starlette)
    routes = [route.path for route in admin.routes if isinstance(route, Route)]
    constants = [value for name, value in vars(receive_app).items() if name.isupper()]
    return {
        INDEX_PATH,
        *(
            path.replace(":path", "").format(kind=kind, id="{id}", name="{name}")
            for path in routes
            for kind in LISTS
        ),
        *(value for value in constants if isinstance(value, str) and value.startswith("/")),
    } - {receive_app.WEBHOOKS} | {f"{receive_app.WEBHOOKS}{{source}}"}


def methods_at(service: RunningInbox, path: str) -> set[str]:
    """Return the methods that the service allows on a path."""
    response = service.http.request("TRACE", path.format(id="1", name="credit", source="lab"))
    assert response.status_code == 405
    return set(response.headers["allow"].split(", ")) - {"HEAD"}


async def test_a_mounted_admin_app_describes_only_itself(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
    inbox = make_inbox(sqlite_url)
    transport = httpx.ASGITransport(inbox.admin_asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as http:
        served = (await http.get(OPENAPI, headers=BEARER)).json()
        lists = [path for path, methods in served["paths"].items() if "get" in methods]
        lists = [path for path in lists if "{" not in path]
        responses = [(await http.get(path, headers=BEARER)).status_code for path in lists]
    await inbox._mount().close()
    actions = {
        "/jobs/{id}",
        "/jobs/{id}/requeue",
        "/jobs/{id}/cancel",
        "/events/{id}/route",
        "/events/{id}/dismiss",
        "/effects/{id}/resolve",
        "/rejections/{id}/verify",
        "/deliveries/{id}/accept",
        "/watermarks/forget",
        *(f"/{kind}/{{name}}/{verb}" for kind in ("handlers", "sources") for verb in PAUSING),
    }
    assert set(served["paths"]) == {"/", *(f"/{kind}" for kind in LISTS), *actions, OPENAPI}
    assert list(served["components"]["securitySchemes"]) == ["admin_token"]
    assert responses == [200] * len(lists)


def test_every_error_code_is_documented() -> None:
    errors = OPEN["components"]["responses"].values()
    documented = {
        code
        for error in errors
        for code in error["description"].split("Codes: ")[1].removesuffix(".").split(", ")
    }
    everywhere = {"wrong_method", "not_found"}  # documented once, in the description
    assert set(codes_in_the_source()) - everywhere <= documented


def codes_in_the_source() -> Iterator[str]:
    """Yield every error code: of an error class, or passed where an error is raised."""
    yield from (refused.code for refused in subclasses(RequestRefused) if "code" in vars(refused))
    makers = {"_Entry"} | {refused.__name__ for refused in subclasses(RequestRefused)}
    for path in Path(onceward.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes(), path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in makers:
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield from re.findall(r"^[a-z]+(?:_[a-z]+)*$", argument.value)


def subclasses(error: type[RequestRefused]) -> Iterator[type[RequestRefused]]:
    for sub in error.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_every_error_has_a_status() -> None:
    for refused in subclasses(RequestRefused):
        if not issubclass(refused, HttpError):
            error = refused.__new__(refused)
            assert 400 <= status_of(error) < 600, refused


# Real responses.


def strict(part: Any) -> Any:
    """Return the document with no members allowed beyond those it names."""
    if isinstance(part, list):
        return [strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {"additionalProperties": False} if "properties" in part else {}
    return {name: strict(value) for name, value in part.items()} | closed


def test_real_responses_have_exactly_the_documented_members(service: RunningInbox) -> None:
    api = schema_of(strict(OPEN))

    def check(path: str, response: httpx.Response, status: int) -> httpx.Response:
        assert response.status_code == status
        api[path][response.request.method].validate_response(response)
        return response

    for more in ({}, {}, {"payload": "another"}):
        check("/events/ingest", service.post("openapi-paid", **more), 202)
    check("/webhooks/{source}", service.send(partner_webhook("openapi")), 202)
    broken, done = (service.settled_job(event) for event in ("broken", "openapi-paid"))
    detail = "/admin/jobs/{id}"
    for job, status in ((broken, 200), (done, 200), ({"id": "999999999"}, 404)):
        check(detail, service.http.get(detail.format(id=job["id"])), status)
    requeue = "/admin/jobs/{id}/requeue"
    for job, status in ((broken, 200), (done, 409), ({"id": "999999999"}, 404)):
        path = requeue.format(id=job["id"])
        check(requeue, service.http.post(path, json={**ACTION, "even_if_stale": True}), status)
    check("/webhooks/{source}", service.http.post("/webhooks/partner", content=b"{}"), 401)
    eventually(lambda: service.items("rejections"), "the rejection is listed")
    (conflict, *_) = service.items("deliveries", status="conflict")
    accept = "/admin/deliveries/{id}/accept"
    for status in (200, 409):
        check(accept, service.http.post(accept.format(id=conflict["id"]), json=ACTION), status)
    again = "/admin/rejections/{id}/verify"
    check(again, service.http.post(again.format(id="1"), json=ACTION), 409)
    forget = "/admin/watermarks/forget"
    for key in ("p", "q"):
        service.post(f"openapi-{key}", "plan", payload={"id": key, "created": 1})
        assert service.settled_job(f"openapi-{key}")["status"] == "done"
    for status in (200, 404):
        body = {**ACTION, "handler": "sync", "key": "p"}
        check(forget, service.http.post(forget, json=body), status)
    for kind in LISTS:
        page = check(f"/admin/{kind}", service.http.get(f"/admin/{kind}?limit=1"), 200).json()
        assert len(page["items"]) == 1
    for path in ("/", "/healthz", "/readyz"):
        check(path, service.http.get(path), 200)


def test_responses_about_the_queue_have_exactly_the_documented_members(
    service: RunningInbox,
) -> None:
    api = schema_of(strict(OPEN))

    def check(path: str, status: int, **names: str) -> None:
        response = service.http.post(path.format(**names), json=ACTION)
        assert response.status_code == status
        api[path]["POST"].validate_response(response)

    service.post("openapi-cancelled", "order.broken")
    job = service.settled_job("openapi-cancelled")["id"]
    for number, status in ((job, 200), (job, 409), ("999999999", 404)):
        check("/admin/jobs/{id}/cancel", status, id=number)
    for kind, name in (("handlers", "follow"), ("sources", "xero")):
        for verb, status in (("pause", 200), ("pause", 409), ("resume", 200), ("resume", 409)):
            check(f"/admin/{kind}/{{name}}/{verb}", status, name=name)
        check(f"/admin/{kind}/{{name}}/pause", 404, name="nobody")


# The page.


def test_docs_api_has_every_route() -> None:
    plain = document(settings=Settings(), sources={}, prefix=ADMIN, dev=False)
    rows = [
        f"| `{method.upper()} {path}` | {operation['summary']} | {credential(operation)} |"
        for path, operations in plain["paths"].items()
        for method, operation in operations.items()
    ]
    page = API_PAGE.read_text()
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


def credential(operation: dict[str, Any]) -> str:
    if operation["operationId"] == "receive_webhook":
        return "a signature"
    return "a token" if operation["security"] else "nothing"
