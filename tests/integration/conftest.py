"""Services for HTTP tests: `serve` starts one, `service` runs on each store."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward import Inbox, Transaction
from tests.integration.running import RunningInbox, make_inbox

Serve = Callable[..., RunningInbox]


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


@pytest.fixture(params=["streamed", "direct", "uvicorn"])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Start services that stop with the test.

    Posts arrive in two writes (streamed), in one (direct), or through uvicorn's own protocol.
    """
    single_write = request.param == "direct"
    started: list[RunningInbox] = []

    def start(
        url: str | Inbox, *, dev: bool = True, host: str = "127.0.0.1", **settings: Any
    ) -> RunningInbox:
        settings.setdefault("own_http_protocol", request.param != "uvicorn")
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
