"""Every boundary value of the OpenAPI document gets a response that the document describes."""

import itertools
import re
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import assume

from support.postgres import Cluster
from tests.described_service import (
    BEARER,
    IGNORE_RANDOM,
    PUBLIC,
    UNHURRIED,
    Case,
    aim,
    closed_service,
    described,
    open_service,
    schema_of,
)
from tests.integration.running import RunningInbox

open_api = schema_of(described(dev=True))
closed_api = schema_of(described(dev=False))
pytestmark = IGNORE_RANDOM

CLIENTS: Final = itertools.count(1)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningInbox]:
    """Run a service in dev mode, on each store."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('open') / 'onceward.db'}"
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        url = cluster.create_database(request.getfixturevalue("postgres_template"))
    with open_service(url) as running:
        yield running


@pytest.fixture(scope="module", params=["sqlite"])  # schemathesis needs a parameter in the name
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """Run a service in production mode, with one token holder."""
    with closed_service(tmp_path_factory.mktemp("closed")) as running:
        yield running


def new_client() -> dict[str, str]:
    """Return the header of a new client: one that sends many wrong tokens would get 429."""
    return {"X-Forwarded-For": f"2001:db8:0:{next(CLIENTS):x}::1"}


@open_api.parametrize()
@UNHURRIED
def test_every_response_is_described(case: Case, service: RunningInbox) -> None:
    aim(case, service)
    case.call_and_validate(base_url=service.address)


@closed_api.parametrize()
@UNHURRIED
def test_with_a_token_every_response_is_described(case: Case, closed: RunningInbox) -> None:
    aim(case, closed)
    case.call_and_validate(base_url=closed.address, headers=BEARER | new_client())


@closed_api.parametrize()
@UNHURRIED
def test_without_a_token_only_public_routes_respond(case: Case, closed: RunningInbox) -> None:
    aim(case, closed)
    assume(re.fullmatch(r"[\w./-]+", case.formatted_path))  # others get 404: they are no routes
    response = case.call(base_url=closed.address, headers=new_client())
    if case.operation.definition.raw["operationId"] in PUBLIC:
        assert b'"unauthorized"' not in response.content
    elif case.method.upper() == case.operation.method.upper():
        assert (response.status_code, response.json()["error"]) == (401, "unauthorized")
    else:
        assert response.status_code in (401, 405)
