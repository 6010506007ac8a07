"""Requests received without a task: every failure is one response, and memory is freed."""

from typing import Any

import pytest

from onceward.errors import Overloaded
from onceward.http.body_memory import Body, BodyMemory
from onceward.http.receive_app import DirectReception, InboundRequest
from onceward.http.responses import Response, Scope, error_response, json_response
from onceward.receive.pending import Pending
from onceward.settings import Settings
from onceward.sources.request import Headers
from tests.factories import arrival

MAX_BODY = 10


class App:
    """The part of a ReceiveApp that a reception uses, with a ledger that the test resolves."""

    def __init__(self) -> None:
        settings = Settings(max_body_bytes=MAX_BODY, max_pending_bytes=100)
        self.memory = BodyMemory(settings)
        self.pending = Pending([arrival()])
        self.recorded: list[bytes] = []

    def open(self, scope: Scope, headers: Headers) -> InboundRequest:
        return InboundRequest(scope, headers, Body(self.memory, scope, headers))

    def record(self, inbound: InboundRequest) -> Pending:
        self.recorded.append(inbound.body.take())
        return self.pending

    def response(self, _inbound: InboundRequest, _result: Pending) -> Response:
        return json_response(202, {})

    def error_response(self, _scope: Scope, error: Exception) -> Response:
        return error_response(error)

    def reach_answered(self) -> None:
        """Reach no failpoint."""


class Reception:
    """A reception, and the statuses of its responses."""

    def __init__(self) -> None:
        self.app = App()
        self.statuses: list[int] = []
        app: Any = self.app
        self.direct = DirectReception(
            app, {}, Headers([]), lambda response: self.statuses.append(response.status)
        )


@pytest.fixture
def reception() -> Reception:
    return Reception()


def test_the_response_follows_the_commit(reception: Reception) -> None:
    for chunk in (b"ab", b"cd"):
        reception.direct.add(chunk)
    reception.direct.complete()
    assert (reception.app.recorded, reception.statuses) == ([b"abcd"], [])
    reception.app.pending.set_result([])
    assert reception.statuses == [202]
    assert reception.app.memory.used == 0


def test_a_body_beyond_the_limit_gets_one_response_and_is_freed(reception: Reception) -> None:
    for _ in range(3):
        reception.direct.add(b"x" * MAX_BODY)
    reception.direct.complete()
    assert (reception.statuses, reception.app.recorded) == ([413], [])
    assert reception.app.memory.used == 0


def test_a_refusal_of_the_recorder_gets_one_response(
    reception: Reception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: InboundRequest) -> Pending:
        raise Overloaded("full")

    monkeypatch.setattr(reception.app, "record", refuse)
    reception.direct.add(b"x")
    reception.direct.complete()
    reception.direct.complete()
    assert reception.statuses == [503]
    assert reception.app.memory.used == 0


def test_a_disconnected_sender_frees_its_body_and_gets_no_response(reception: Reception) -> None:
    reception.direct.add(b"x")
    reception.direct.disconnect()
    reception.direct.add(b"x")
    reception.direct.complete()
    assert (reception.statuses, reception.app.recorded) == ([], [])
    assert reception.app.memory.used == 0


def test_a_sender_that_disconnects_before_the_commit_gets_no_response(
    reception: Reception,
) -> None:
    reception.direct.add(b"x")
    reception.direct.complete()
    reception.direct.disconnect()
    reception.app.pending.set_result([])
    assert (reception.statuses, reception.app.recorded) == ([], [b"x"])
    assert reception.app.memory.used == 0


def test_a_body_that_makes_room_gets_one_response_and_is_not_recorded() -> None:
    """What is left of it must not be taken for the body."""
    app: Any = App()
    app.memory = BodyMemory(Settings(max_body_bytes=100_000, max_pending_bytes=100_000))
    statuses: list[int] = []
    large, other = (
        DirectReception(
            app,
            {"client": (address, 1)},
            Headers([]),
            lambda response: statuses.append(response.status),
        )
        for address in ("203.0.113.1", "203.0.113.2")
    )
    large.add(b"x" * 80_000)
    other.add(b"y" * 50_000)
    assert statuses == [503]
    large.add(b"the end")
    large.complete()
    other.complete()
    assert (app.recorded, statuses) == ([b"y" * 50_000], [503])
    assert app.memory.used == 0
