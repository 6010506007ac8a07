"""The outcome of a function that acts on another system: run within a time, stored as JSON."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from onceward.errors import PermanentError
from onceward.model.effects import MAX_RESULT_BYTES, EffectCall
from onceward.runtime.error_text import describe
from onceward.runtime.threads import call_in_thread
from onceward.runtime.value_kind import kind_of


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned a value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised an error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Expired:
    """The function did not return in time."""


async def run_call(
    call: partial[Any],
    seconds: float,
    on_left: Callable[[asyncio.Future[Any]], object] | None = None,
) -> Returned | Raised | Expired:
    """Run a function within a time. A sync function runs in a thread, which cannot be stopped.

    `on_left` gets the future of such a thread when the time ends before it. A coroutine that a
    thread returns, as a sync wrapper of an async function does, is awaited: it has not run yet.
    """
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            if inspect.iscoroutinefunction(call.func):
                value = call()
            else:
                value = await _run_in_thread(call, on_left)
            return Returned(await value if inspect.isawaitable(value) else value)
    except Exception as error:  # noqa: BLE001 - the caller decides what it means
        return Expired() if timeout.expired() else Raised(error)


async def _run_in_thread(
    call: partial[Any], on_left: Callable[[asyncio.Future[Any]], object] | None
) -> Any:
    future = call_in_thread(call, name="onceward-effect")
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if on_left is not None:
            on_left(future)
        raise


def encode_result(label: str, function: str, value: Any) -> tuple[str | None, str | None]:
    """Return a result as JSON, and the fault if it cannot be stored. None has no text."""
    if value is None:
        return None, None
    try:
        text = msgspec.json.encode(value).decode()
        msgspec.json.decode(text)
    except Exception as error:  # noqa: BLE001 - the value is the user's
        fault = f"{kind_of(value)}, which is no JSON ({describe(error)})"
    else:
        size = len(text.encode())
        if size <= MAX_RESULT_BYTES:
            return text, None
        fault = f"{size} bytes of JSON; the limit is {MAX_RESULT_BYTES}"
    return None, (
        f"{label}: {function} was applied, but its result cannot be stored: it is {fault}. "
        "Return the part that the handler needs"
    )


def stored_result(call: EffectCall) -> Any:
    """Return the result of an effect that succeeded. Raise PermanentError if it was not stored."""
    if call.error_message is not None:
        raise PermanentError(call.error_message)
    return None if call.result is None else msgspec.json.decode(call.result)
