"""The lines about refused connections: who holds the others, and when it is over."""

import asyncio
import logging
from typing import Any, cast

import pytest

from onceward.http.server.context import ServerContext
from onceward.settings import Settings

REMOTE = "203.0.113.7"
OTHER = "198.51.100.1"


class Loop:
    """The clock of an event loop."""

    seconds = 100.0

    def time(self) -> float:
        return self.seconds


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return loop


@pytest.fixture
def context() -> ServerContext:
    settings = Settings(max_connections=3, max_connections_per_address=2)
    return ServerContext(cast("Any", None), settings)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    found = list(caplog.records)
    caplog.clear()
    return found


def test_a_line_names_the_holder_and_another_the_end(
    context: ServerContext, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    assert all(context.admit(address) for address in (REMOTE, REMOTE, OTHER))
    for _ in range(5):
        assert not context.admit(OTHER)
        loop.seconds += 0.4
    first, second = lines(caplog)
    reason = f"max_connections (3) are open; {REMOTE} holds 2"
    assert first.getMessage() == f"connection refused: {reason}"
    assert not hasattr(first, "suppressed")
    assert second.getMessage() == f"connection refused: {reason} (2 more since the last line)"

    context.limits.leave(REMOTE)
    loop.seconds += 0.5
    assert context.admit(OTHER)  # at the limit, refusals may go on
    assert not lines(caplog)
    context.limits.leave(OTHER)
    loop.seconds += 0.2
    assert context.admit(OTHER)
    (end,) = lines(caplog)
    assert end.getMessage() == "connections are accepted again; 5 were refused within 1.6 s"
    assert (vars(end)["count"], vars(end)["seconds"]) == (5, 1.6)
    context.limits.leave(OTHER)
    assert context.admit(OTHER)
    assert not lines(caplog)  # once


def test_the_reserve_of_loopback_is_no_end(
    context: ServerContext, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    for address in (REMOTE, REMOTE, OTHER):
        context.admit(address)
    assert not context.admit(OTHER)
    lines(caplog)
    loop.seconds += 10
    assert context.admit("127.0.0.1")
    assert not lines(caplog)
