"""Handlers are checked when they are defined. A handler whose body never ran is not done."""

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
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (plain_wrapper(coroutine), "wrapped in a sync one"),
        (lambda nothing: None, "unknown parameter 'nothing'"),
    ],
)
def test_a_function_that_cannot_be_a_handler_is_refused(
    function: Callable[..., Any], fault: str
) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        Inbox().on("*", name="handler")(function)


@pytest.mark.parametrize("function", [coroutine, generator, async_generator])
async def test_a_handler_that_returns_an_unstarted_coroutine_or_generator_fails(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(PermanentError, match="instead of running it"):
        await HandlerCall(function, {"event": None}, is_async=False).run()


async def test_a_handler_in_a_thread_may_raise_stop_iteration() -> None:
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
        (write, {"transaction": "joint"}, "transaction is 'joint'; use 'own' or 'shared'"),
        (coroutine, {"transaction": "shared"}, "name one of them in the signature, or remove"),
        (
            write,
            {"transaction": "shared", "timeout_seconds": 0.1},
            "timeout_seconds is 0.1, .* set timeout_seconds to 0.25 or more",
        ),
    ],
)
def test_an_unusable_transaction_option_is_refused_and_the_fix_named(
    function: Callable[..., Any], options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"handler 'credit': .*{fault}"):
        Inbox().on("*", name="credit", **options)(function)


def test_a_default_timeout_below_the_shared_timeout_is_refused_and_the_fix_named() -> None:
    inbox = Inbox("sqlite:///x.db", handler_timeout_seconds=0.1)
    inbox.on("*", transaction="shared")(write)
    fault = "handler 'write': handler_timeout_seconds is 0.1, .* or remove transaction='shared'"
    with pytest.raises(ConfigurationError, match=fault):
        inbox.service()


def test_a_timeout_equal_to_the_shared_timeout_is_accepted() -> None:
    inbox = Inbox("sqlite:///x.db", handler_timeout_seconds=0.1)
    inbox.on("*", transaction="shared", timeout_seconds=0.25)(write)
    inbox.on("*", name="own", timeout_seconds=0.1)(write)
    shared, own = inbox.service().handlers.values()
    assert (shared.shares_transaction, own.shares_transaction) == (True, False)
