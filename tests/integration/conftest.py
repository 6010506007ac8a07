"""Services for HTTP tests: `serve` starts one, `service` runs on each store."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward import Inbox, Transaction
from tests.integration.running import RunningInbox, make_inbox

Serve = Callable[..., RunningInbox]

TRANSPORTS = ("streamed", "direct", "uvicorn")
"""How posts arrive: in two writes, in one, or through uvicorn's own protocol."""
STORES = ("sqlite", "postgres", "sqlite")
"""The store that each transport is tested with."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove settings that the environment of the test run may have."""
    for name in ("ONCEWARD_ADMIN_TOKENS", "ONCEWARD_DATABASE_URL", "ONCEWARD_FAILPOINTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def inbox() -> Inbox:
    """Return an inbox with a table for handlers to write to."""
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS notes (text varchar(255))")

    return inbox


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked `every_transport` on each, with both stores among them."""
    if not metafunc.definition.get_closest_marker("every_transport"):
        return
    if "database_url" in metafunc.fixturenames:
        names, cases = "transport, database_url", list(zip(TRANSPORTS, STORES, strict=True))
        metafunc.definition.add_marker(pytest.mark.parametrize(names, cases, indirect=True))
    elif "transport" in metafunc.fixturenames:
        mark = pytest.mark.parametrize("transport", TRANSPORTS, indirect=True)
        metafunc.definition.add_marker(mark)


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> str:
    """Return how posts arrive."""
    name: str = getattr(request, "param", TRANSPORTS[0])
    return name


@pytest.fixture
def serve(transport: str) -> Iterator[Serve]:
    """Start services that stop with the test."""
    single_write = transport == "direct"
    started: list[RunningInbox] = []

    def start(
        url: str | Inbox, *, dev: bool = True, host: str = "127.0.0.1", **settings: Any
    ) -> RunningInbox:
        settings.setdefault("own_http_protocol", transport != "uvicorn")
        inbox = make_inbox(url, **settings) if isinstance(url, str) else url
        started.append(RunningInbox(inbox, dev=dev, host=host, single_write=single_write))
        return started[-1]

    yield start
    for service in started:
        service.close()


@pytest.fixture
def service(database_url: str, serve: Serve) -> RunningInbox:
    """Return a service in dev mode, on each store."""
    return serve(database_url)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """Run one service on SQLite for a whole file; each test uses its own ids."""
    path: Path = tmp_path_factory.mktemp("shared") / "onceward.db"
    running = RunningInbox(make_inbox(f"sqlite:///{path}"), dev=True)
    yield running
    running.close()
