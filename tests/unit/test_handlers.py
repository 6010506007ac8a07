"""Handlers are checked when they are defined, and a handler that did not run is not done."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from onceward import Event, Inbox, Transaction
from onceward.errors import ConfigurationError, PermanentError
from onceward.work.sync import HandlerCall


def plain_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def coroutine(event: Event[Any]) -> None:
    pass


def generator(event: Event[Any]) -> Iterator[None]:
    yield


async def async_generator(event: Event[Any]) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (generator, "it is a generator"),
        (async_generator, "it is a generator"),
        (plain_wrapper(coroutine), "wrapped in a plain one"),
        (lambda nothing: None, "it asks for 'nothing'"),
    ],
)
def test_a_function_that_would_not_run_is_refused(function: Callable[..., Any], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        Inbox().on("*", name="handler")(function)


@pytest.mark.parametrize("function", [coroutine, generator, async_generator])
async def test_a_handler_that_returns_a_coroutine_or_generator_is_not_done(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(PermanentError, match="instead of running it"):
        await HandlerCall(function, {"event": None}, is_async=False).run()


async def test_stop_iteration_in_a_thread_becomes_a_runtime_error() -> None:
    def stop() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(HandlerCall(stop, {}, is_async=False).run(), 5.0)


@pytest.mark.parametrize("pattern", ["", "*.paid", "invoice*", "a.*.b", "**", "a" * 300])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="pattern"):
        Inbox().on(pattern)(coroutine)


async def write(event: Event[Any], tx: Transaction) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "options", "fault"),
    [
        (write, {"transaction": "joint"}, "transaction is 'joint'; write 'own' or 'shared'"),
        (coroutine, {"transaction": "shared"}, "name one of them in the signature, or remove"),
        (
            write,
            {"transaction": "shared", "timeout_seconds": 0.1},
            "timeout_seconds is 0.1, .* set timeout_seconds to 0.25 or more",
        ),
    ],
)
def test_a_transaction_that_cannot_be_shared_is_refused_with_the_fix(
    function: Callable[..., Any], options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"Handler credit: .*{fault}"):
        Inbox().on("*", name="credit", **options)(function)


def test_a_default_timeout_below_the_limit_of_a_shared_transaction_is_refused_with_the_fix() -> (
    None
):
    inbox = Inbox("sqlite:///x.db", handler_timeout_seconds=0.1)
    inbox.on("*", transaction="shared")(write)
    fault = "Handler write: handler_timeout_seconds is 0.1, .* or remove transaction='shared'"
    with pytest.raises(ConfigurationError, match=fault):
        inbox.service()


def test_a_shared_transaction_needs_no_timeout_longer_than_its_limit() -> None:
    inbox = Inbox("sqlite:///x.db", handler_timeout_seconds=0.1)
    inbox.on("*", transaction="shared", timeout_seconds=0.25)(write)
    inbox.on("*", name="own", timeout_seconds=0.1)(write)
    shared, own = inbox.service().handlers.values()
    assert (shared.shares_transaction, own.shares_transaction) == (True, False)
