"""Handlers are checked when they are defined."""

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from onceward import Event, Inbox, Transaction
from onceward.errors import ConfigurationError
from onceward.runtime.clock import SystemClock
from onceward.work.running.handler_call import HandlerCall
from onceward.work.running.loop_watch import LoopWatch


def call(function: Callable[..., Any], *, is_async: bool = False, **arguments: Any) -> HandlerCall:
    watch = LoopWatch("credit", SystemClock(), label="handler 'credit'")
    return HandlerCall(function, arguments, is_async=is_async, loop_watch=watch)


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


def positional_only(event: Event[Any], /) -> None:
    pass


class Depends:
    """Stands for FastAPI's class."""


def with_dependency(event: Event[Any], db: Any = Depends()) -> None:  # noqa: B008
    pass


def bare_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Books:
    def credit(self, event: Event[Any]) -> None:
        pass


UNUSABLE_FUNCTIONS: list[tuple[Callable[..., Any], str]] = [
    (generator, "is a generator"),
    (async_generator, "is a generator"),
    (plain_wrapper(coroutine), "wrapped in a sync one"),
    (lambda nothing: None, "unknown parameter 'nothing'; use event, tx, effects"),
    (positional_only, "parameter 'event' is positional-only; remove the / after it"),
    (with_dependency, r"'db' has the default Depends\(…\), which Onceward does not resolve; "),
    (Books.credit, r"register the bound method: inbox.on\(…\)\(instance.method\)"),
    (bare_wrapper(coroutine), r"so \*args would stay empty; .* use functools.wraps"),
]


def test_a_function_that_cannot_be_a_handler_is_refused(subtests: pytest.Subtests) -> None:
    for function, fault in UNUSABLE_FUNCTIONS:
        with subtests.test(function=function), pytest.raises(ConfigurationError, match=fault):
            Inbox().on("*", name="handler")(function)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (coroutine, "coroutine"),
        (Books().credit, "credit"),
        (functools.lru_cache(Books().credit), "credit"),
    ],
)
def test_methods_and_wrapped_functions_can_be_handlers(
    function: Callable[..., Any], name: str
) -> None:
    inbox = Inbox("sqlite:///x.db")
    inbox.on("*")(function)
    assert list(inbox.service().handlers) == [name]


@pytest.mark.parametrize(
    "function", [lambda event: None, functools.partial(coroutine)], ids=["lambda", "partial"]
)
def test_a_function_without_a_name_needs_one(function: Callable[..., Any]) -> None:
    inbox = Inbox("sqlite:///x.db")
    with pytest.raises(ConfigurationError, match=r"\(.*\): there is no name; pass name="):
        inbox.on("*")(function)
    inbox.on("*", name="credit")(function)
    assert list(inbox.service().handlers) == ["credit"]


def test_two_handlers_with_one_name_are_refused_with_both_lines() -> None:
    inbox = Inbox()
    inbox.on("*")(coroutine)
    with pytest.raises(ConfigurationError) as refused:
        inbox.on("*", name="coroutine")(write)
    assert str(refused.value) == (
        f"handler 'coroutine' ({defined(write)}): the name is already in use by handler "
        f"'coroutine' ({defined(coroutine)}); rename the function, or pass another name="
    )


def defined(function: Callable[..., Any]) -> str:
    return f"tests/unit/test_handlers.py:{function.__code__.co_firstlineno}"


async def test_a_handler_in_a_thread_may_raise_stop_iteration() -> None:
    def stop() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(call(stop).run(), 5.0)


def test_an_invalid_pattern_is_refused(subtests: pytest.Subtests) -> None:
    for pattern in ("", "*.paid", "invoice*", "a.*.b", "**", "a" * 300):
        with subtests.test(pattern=pattern), pytest.raises(ConfigurationError, match="pattern"):
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
    with pytest.raises(ConfigurationError, match=rf"handler 'credit' \(.*\): .*{fault}"):
        Inbox().on("*", name="credit", **options)(function)


def test_a_default_timeout_below_the_shared_timeout_is_refused_and_the_fix_named() -> None:
    inbox = Inbox("sqlite:///x.db", handler_timeout_seconds=0.1)
    inbox.on("*", transaction="shared")(write)
    fault = r"'write' \(.*\): handler_timeout_seconds is 0.1, .* or remove transaction='shared'"
    with pytest.raises(ConfigurationError, match=fault):
        inbox.service()


def test_a_timeout_equal_to_the_shared_timeout_is_accepted() -> None:
    inbox = Inbox("sqlite:///x.db", handler_timeout_seconds=0.1)
    inbox.on("*", transaction="shared", timeout_seconds=0.25)(write)
    inbox.on("*", name="own", timeout_seconds=0.1)(write)
    shared, own = inbox.service().handlers.values()
    assert (shared.shares_transaction, own.shares_transaction) == (True, False)


UNUSABLE_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"max_attemps": 3}, "unknown option 'max_attemps'; did you mean 'max_attempts'?"),
    ({"max_events": 3}, "unknown option 'max_events'; a call gets one event"),
    (
        {"retry_safe_for": "1d"},
        "unknown option 'retry_safe_for'; it belongs to an outside call",
    ),
    ({"patterns": ["a"]}, "unknown option 'patterns'; the options are concurrency, "),
    ({"max_attempts": "3"}, "max_attempts is '3'; use a whole number from 1 to 1000000"),
    ({"max_attempts": True}, "max_attempts is True; use a whole number from 1 to 1000000"),
    ({"max_attempts": 0}, "max_attempts is 0; use a whole number from 1 to 1000000"),
    ({"max_attempts": 10**7}, "max_attempts is 10000000; use a whole number from 1 to 1000000"),
    ({"timeout_seconds": "5"}, "timeout_seconds is '5'; use a number of seconds, more than 0"),
    ({"timeout_seconds": True}, "timeout_seconds is True; use a number of seconds"),
    ({"timeout_seconds": float("inf")}, "timeout_seconds is inf; use a number of seconds"),
    ({"source": 3}, "source is 3; use the name of a source"),
    ({"transaction": ["shared"]}, "transaction is ['shared']; use 'own' or 'shared'"),
    ({"name": ""}, "there is no name; pass name="),
    ({"name": 7}, "name is 7; use a text"),
]


def test_an_unusable_option_is_refused_by_name_with_the_line(subtests: pytest.Subtests) -> None:
    for options, fault in UNUSABLE_OPTIONS:
        with subtests.test(options=options):
            with pytest.raises(ConfigurationError) as refused:
                Inbox().on("*", **options)(write)
            (text,) = refused.value.faults
            assert f"({defined(write)}): {fault}" in text


def test_the_nearest_option_is_suggested_after_the_list() -> None:
    with pytest.raises(ConfigurationError, match=r"; did you mean 'max_attempts'\?$"):
        Inbox().on("*", max_attemps=3)(write)  # type: ignore[call-arg]


def test_all_faults_of_a_handler_are_listed() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Inbox().on("", tries=3, max_attempts=0)(lambda nothing: None)  # type: ignore[call-arg]
    assert len(refused.value.faults) == 5


NO_TEXTS: list[tuple[Any, str]] = [
    (["a", "b.*"], "separate arguments, not a list; write 'a', 'b.*'"),
    (("a",), "separate arguments, not a tuple; write 'a'"),
    (7, "7 is not a pattern"),
    (None, "None is not a pattern"),
]


def test_a_pattern_that_is_no_text_is_refused(subtests: pytest.Subtests) -> None:
    for pattern, fault in NO_TEXTS:
        with subtests.test(fault), pytest.raises(ConfigurationError, match=re.escape(fault)):
            Inbox().on(pattern)(write)


# Registrations that would register nothing. The line is that of the test.


def refused_on(line_offset: int, error: ConfigurationError, function: Callable[..., Any]) -> str:
    """Return the only fault, without the line, which must be so many lines into a function."""
    (text,) = error.faults
    line = function.__code__.co_firstlineno + line_offset
    prefix = f"tests/unit/test_handlers.py:{line}: "
    assert text.startswith(prefix)
    return text.removeprefix(prefix)


def test_on_without_parentheses_is_refused() -> None:
    inbox: Any = Inbox()
    with pytest.raises(ConfigurationError) as refused:

        @inbox.on
        async def credit(event: Event[Any]) -> None:
            pass

    fault = refused_on(4, refused.value, test_on_without_parentheses_is_refused)
    assert fault == (
        '@inbox.on needs the event types in parentheses; write @inbox.on("invoice.paid")'
    )


def test_a_class_or_an_instance_is_no_handler() -> None:
    inbox: Any = Inbox()
    with pytest.raises(ConfigurationError) as refused:

        @inbox.on("*")
        class Credit:
            pass

    fault = refused_on(4, refused.value, test_a_class_or_an_instance_is_no_handler)
    assert fault == "@inbox.on(…) needs a function, not a class; put it above a function"
    with pytest.raises(ConfigurationError, match="needs a function, not a Books"):
        inbox.on("*")(Books())


def test_on_that_is_applied_to_no_function_is_refused_at_start() -> None:
    inbox = Inbox("sqlite:///x.db")
    inbox.on("invoice.paid")
    inbox.on("*")(write)
    with pytest.raises(ConfigurationError) as refused:
        inbox.service()
    fault = refused_on(2, refused.value, test_on_that_is_applied_to_no_function_is_refused_at_start)
    assert fault == "inbox.on(…) registers nothing by itself; write @inbox.on(…) above a function"


def test_at_start_with_parentheses_is_refused() -> None:
    inbox = Inbox()
    with pytest.raises(ConfigurationError) as refused:
        inbox.at_start()
    fault = refused_on(3, refused.value, test_at_start_with_parentheses_is_refused)
    assert fault == "write @inbox.at_start without parentheses"


def sync_tables(tx: Transaction) -> None:
    pass


async def no_tables() -> None:
    pass


async def other_tables(connection: Transaction) -> None:
    pass


async def more_tables(tx: Transaction, event: Event[Any]) -> None:
    pass


UNUSABLE_AT_START: list[tuple[Any, str]] = [
    (sync_tables, "sync_tables must be async: write `async def sync_tables(tx)`"),
    (no_tables, "no_tables gets one argument, tx: write `async def no_tables(tx)`"),
    (other_tables, "other_tables gets one argument, tx: write `async def other_tables(tx)`"),
    (more_tables, "more_tables gets one argument, tx: write `async def more_tables(tx)`"),
    ("tables", "'tables' is not a function; write @inbox.at_start above a function"),
]


def test_a_function_that_cannot_run_at_start_is_refused(subtests: pytest.Subtests) -> None:
    for function, fault in UNUSABLE_AT_START:
        with subtests.test(fault):
            inbox = Inbox()
            with pytest.raises(ConfigurationError) as refused:
                inbox.at_start(function)
            text = refused_on(5, refused.value, test_a_function_that_cannot_run_at_start_is_refused)
            assert text == f"@inbox.at_start: {fault}"
