"""A handler gets the arguments that its parameters name or annotate."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceward import Effects, Event, SyncEffects, SyncTransaction, Transaction
from onceward.errors import ConfigurationError
from onceward.model.jobs import Job
from onceward.work.definition.arguments import ARGUMENTS, Argument, Attempt
from onceward.work.definition.functions import HandlerFunction
from onceward.work.definition.handlers import Handler, make_handler
from onceward.work.outside.calls import NoCalls
from onceward.work.running.pending_calls import PendingCalls
from onceward.work.running.transaction import UnitOfWork
from tests.factories import make_event

JOB = Job(7, "credit", 0, 3, 1, "s", "e", "t", None, datetime.now(UTC), b"{}", b"")
EVENT: Event[Any] = make_event("s")


class Session:
    """Stands for the session of an ORM."""

    def __init__(self, job: int) -> None:
        self.job = job


class ThreadSession(Session):
    """Stands for the blocking session of a handler in a thread."""

    def __init__(self, job: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(job)
        self.loop = loop


SESSION = Argument(
    "session",
    build=lambda attempt: Session(attempt.job.id),
    build_sync=lambda attempt: ThreadSession(attempt.job.id, asyncio.get_running_loop()),
    is_transactional=True,
    annotation=Session,
)


def define(function: HandlerFunction, *extra: Argument, **options: Any) -> Handler:
    return make_handler(function, ["*"], (*ARGUMENTS, *extra), name="credit", **options)


def build(handler: Handler) -> dict[str, Any]:
    unit = cast("UnitOfWork", SimpleNamespace(calls=PendingCalls()))
    attempt = Attempt([EVENT], unit, JOB, calls=NoCalls.SHARED)
    return {name: build(attempt) for name, build in handler.arguments}


async def test_an_async_handler_gets_async_objects() -> None:
    async def credit(effects: object, event: object, tx: object, retries: int = 3) -> None:
        pass

    arguments = build(define(credit))
    assert arguments.keys() == {"effects", "event", "tx"}
    assert arguments["event"] is EVENT
    assert isinstance(arguments["tx"], Transaction)
    assert isinstance(arguments["effects"], Effects)


async def test_a_sync_handler_gets_blocking_objects() -> None:
    def credit(effects: object, event: object, tx: object) -> None:
        pass

    arguments = build(define(credit))
    assert arguments["event"] is EVENT
    assert isinstance(arguments["tx"], SyncTransaction)
    assert isinstance(arguments["effects"], SyncEffects)


async def test_a_new_registry_entry_is_a_new_argument() -> None:
    async def by_name(session: Any) -> None:
        pass

    async def by_annotation(db: Session) -> None:
        pass

    def in_a_thread(db: Session) -> None:
        pass

    assert type(build(define(by_name, SESSION))["session"]) is Session
    assert type(build(define(by_annotation, SESSION))["db"]) is Session
    assert type(build(define(in_a_thread, SESSION))["db"]) is ThreadSession
    assert define(by_annotation, SESSION, transaction="shared").shares_transaction
    with pytest.raises(ConfigurationError, match=r"'db'; use event, tx, effects$"):
        define(by_annotation)


def test_a_handler_with_tx_or_effects_may_share_a_transaction() -> None:
    async def write(tx: object) -> None:
        pass

    async def mark(effects: object) -> None:
        pass

    for function in (write, mark):
        assert define(function, transaction="shared").shares_transaction


async def test_a_name_wins_over_an_annotation() -> None:
    async def credit(tx: Session) -> None:
        pass

    assert isinstance(build(define(credit, SESSION))["tx"], Transaction)


async def test_arguments_resolve_by_name_if_annotations_cannot_be_read() -> None:
    async def credit(tx: "nowhere.Transaction") -> None:  # type: ignore[name-defined] # noqa: F821
        pass

    assert isinstance(build(define(credit))["tx"], Transaction)
