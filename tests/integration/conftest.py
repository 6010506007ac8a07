"""Services for the tests that speak HTTP: `serve` starts one, `service` is one on each store."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward import Inbox
from tests.integration.running import RunningInbox, make_inbox

Serve = Callable[..., RunningInbox]


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in ("ONCEWARD_ADMIN_TOKENS", "ONCEWARD_DATABASE_URL", "ONCEWARD_FAILPOINTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["in pieces", "at once"])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Start services; they end with the test. What is posted arrives in either way."""
    at_once = request.param == "at once"
    running: list[RunningInbox] = []

    def start(
        url: str | Inbox, *, dev: bool = True, host: str = "127.0.0.1", **settings: Any
    ) -> RunningInbox:
        inbox = make_inbox(url, **settings) if isinstance(url, str) else url
        running.append(RunningInbox(inbox, dev=dev, host=host, at_once=at_once))
        return running[-1]

    yield start
    for service in running:
        service.close()


@pytest.fixture
def service(database_url: str, serve: Serve) -> RunningInbox:
    """A service that is open to this machine, once on each store."""
    return serve(database_url)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """One service on SQLite for a whole file, where each test brings ids of its own."""
    path: Path = tmp_path_factory.mktemp("shared") / "onceward.db"
    running = RunningInbox(make_inbox(f"sqlite:///{path}"), dev=True)
    yield running
    running.close()
