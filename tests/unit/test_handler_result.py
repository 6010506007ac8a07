"""A returned value never fails a job in silence: mistakes are refused, other values are logged."""

import asyncio
import http.client
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from fastapi import HTTPException

from onceward.errors import PermanentError, RetryLater
from onceward.work.running.handler_result import ResultCheck

LABEL = "handler 'credit' (app.py:8)"


async def coroutine() -> None:
    pass


def generator() -> Iterator[None]:
    yield


async def async_generator() -> AsyncIterator[None]:
    yield


def sync_handler() -> object:
    return coroutine()


async def async_handler() -> object:
    return coroutine()


def check_for(function: Callable[..., object]) -> ResultCheck:
    return ResultCheck("credit", function, label=LABEL)


def defined(function: Callable[..., Any]) -> str:
    return f"tests/unit/test_handler_result.py:{function.__code__.co_firstlineno}"


@pytest.mark.parametrize("function", [generator, async_generator])
def test_an_unstarted_generator_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(PermanentError, match=f"{defined(function)}: .* instead of running it$"):
        check_for(function).check(function())


@pytest.mark.parametrize(
    ("function", "fix"),
    [
        (sync_handler, "make it async def and write await coroutine()"),
        (async_handler, "write await coroutine()"),
    ],
)
def test_an_unstarted_coroutine_is_refused_with_the_fix(
    function: Callable[..., Any], fix: str
) -> None:
    with pytest.raises(PermanentError) as refused:
        check_for(function).check(coroutine())
    assert str(refused.value) == (
        f"{defined(function)}: the handler returned the coroutine of coroutine() instead of "
        f"running it; {fix}"
    )


@pytest.mark.parametrize("result", [RetryLater(60, "no warehouse yet"), RetryLater])
def test_an_error_that_was_returned_is_refused(result: object) -> None:
    with pytest.raises(PermanentError) as refused:
        check_for(sync_handler).check(result)
    assert str(refused.value) == (
        f"{defined(sync_handler)}: the handler returned RetryLater instead of raising it; "
        "write raise RetryLater(…)"
    )


def test_any_other_value_is_logged_once(
    caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for result, kind in [
        ({"statusCode": 500}, "a dict"),
        ((500, "error"), "a tuple"),
        (False, "a bool"),
        (500, "an int"),
    ]:
        with subtests.test(kind):
            caplog.clear()
            check = check_for(sync_handler)
            for _ in range(3):
                check.check(result)
            (record,) = caplog.records
            assert record.levelno == logging.WARNING
            assert record.getMessage() == (
                f"{LABEL} returned {kind}, which is ignored; raise an error to fail the job"
            )
            assert vars(record)["handler"] == "credit"


async def test_a_task_that_was_returned_must_be_awaited(caplog: pytest.LogCaptureFixture) -> None:
    task = asyncio.create_task(coroutine())
    check_for(async_handler).check(task)
    await task
    assert caplog.messages == [
        f"{LABEL} returned a Task, which is ignored; await it in the handler"
    ]


@pytest.mark.parametrize("result", [None, True])
def test_values_that_mean_success_are_not_logged(
    result: object, caplog: pytest.LogCaptureFixture
) -> None:
    check_for(sync_handler).check(result)
    assert not caplog.records


def test_an_error_for_a_response_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    class Mine(HTTPException):
        pass

    check = check_for(sync_handler)
    for error in (ValueError("no"), http.client.HTTPException("a network error"), Mine(422)):
        check.check_error(error)
    check.check_error(HTTPException(422))
    (line,) = caplog.messages
    assert line == (
        f"{LABEL} raised an HTTPException, which changes no response: the event was accepted "
        "before; raise PermanentError to fail the job, or another error to retry it"
    )
