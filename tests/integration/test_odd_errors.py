"""Every error of a handler settles its job, even one that cannot be described."""

from collections.abc import Awaitable, Callable

import pytest

from onceward import Inbox, Transaction
from onceward.model.jobs import JobStatus
from onceward.work.definition.handlers import TransactionMode
from tests.inprocess import run_inbox


class BrokenCauseError(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise RuntimeError


class BrokenClassError(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError


class NamelessType(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError


class NamelessError(Exception, metaclass=NamelessType):
    pass


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit


class AbortError(BaseException):
    pass


def nested_group(depth: int) -> BaseException:
    error: Exception = ValueError("inner")
    for _ in range(depth):
        error = ExceptionGroup("outer", [error])
    return error


ODD: dict[str, tuple[Callable[[], BaseException], str]] = {
    "cause": (lambda: BrokenCauseError("x"), "BrokenCauseError: x"),
    "class": (
        lambda: BrokenClassError("x"),
        "the handler raised an error that cannot be described",
    ),
    "name": (lambda: NamelessError("x"), "NamelessError: x"),
    "text": (lambda: ExitingError("x"), "ExitingError: the error text cannot be read"),
    "base": (lambda: AbortError("x"), "AbortError: x"),
    "deep group": (lambda: nested_group(10_000), "ValueError: inner"),
    "interrupt": (lambda: BaseExceptionGroup("x", [KeyboardInterrupt()]), "KeyboardInterrupt"),
}


def raising(make: Callable[[], BaseException]) -> Callable[[Transaction], Awaitable[None]]:
    async def odd(tx: Transaction) -> None:
        raise make()

    return odd


async def test_an_odd_error_settles_its_job(database_url: str, subtests: pytest.Subtests) -> None:
    inbox = Inbox()
    modes: tuple[TransactionMode, ...] = ("own", "shared")
    cases = {f"{name}, {mode}": (mode, *ODD[name]) for mode in modes for name in ODD}
    for name, (mode, make, _) in cases.items():
        inbox.on(name, max_attempts=1, transaction=mode, name=name)(raising(make))
    async with run_inbox(inbox, database_url) as bench:
        for name, (_, _, text) in cases.items():
            with subtests.test(name):
                await bench.post(name, event_id=name)
                await bench.wait_until_idle()
                job = await bench.job(name)
                assert (job.status, job.last_error) == (JobStatus.FAILED, text)
