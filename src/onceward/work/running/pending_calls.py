"""Calls of `tx` and `effects` that a handler has not awaited yet."""

from __future__ import annotations

from collections.abc import Coroutine
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from onceward.errors import TransactionMisuse
from onceward.runtime.code_location import instruction_location

T = TypeVar("T")

_MIN_LIMIT: Final = 16
_MAX_UNSTARTED: Final = 10_000

_Call = tuple[Any, str, CodeType, int]
"""A coroutine, its name, and the instruction that made it. A frame would keep its variables."""


class PendingCalls:
    """Notes each call with its line, so that a forgotten ``await`` can be named.

    Started calls are dropped whenever the notes reach a limit that doubles with the unstarted ones:
    memory does not grow with the number of statements.
    """

    __slots__ = ("_calls", "_limit", "_misuse")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._limit = _MIN_LIMIT
        self._misuse: TransactionMisuse | None = None

    def note(
        self, name: str, coroutine: Coroutine[Any, Any, T], frame: FrameType
    ) -> Coroutine[Any, Any, T]:
        """Note a call that `frame` makes, and return its coroutine.

        Raise TransactionMisuse if too many calls were not awaited: they need memory.
        """
        calls = self._calls
        if calls and calls[-1][0].cr_frame is None:  # it returned, like most calls before the next
            calls[-1] = (coroutine, name, frame.f_code, frame.f_lasti)
            return coroutine
        calls.append((coroutine, name, frame.f_code, frame.f_lasti))
        if len(calls) >= self._limit:
            self._calls = calls = [call for call in calls if _is_unstarted(call[0])]
            self._limit = max(_MIN_LIMIT, 2 * len(calls))
            if len(calls) > _MAX_UNSTARTED and (misuse := self.take_misuse()):
                self._misuse = misuse  # the handler may catch it
                raise misuse
        return coroutine

    def take_misuse(self) -> TransactionMisuse | None:
        """Close the calls that were not awaited. Return the error that names them, if any."""
        if self._misuse or not self._calls:
            return self._misuse
        calls, self._calls = self._calls, []
        unstarted = [call for call in calls if _is_unstarted(call[0])]
        for coroutine, *_ in unstarted:
            coroutine.close()  # else Python warns about it
        return _not_awaited(unstarted) if unstarted else None


def _is_unstarted(coroutine: Any) -> bool:
    # Like inspect.getcoroutinestate, in the order that is quick for a call that has returned.
    return not (coroutine.cr_frame is None or coroutine.cr_suspended or coroutine.cr_running)


def _not_awaited(calls: list[_Call]) -> TransactionMisuse:
    (_, name, code, offset), *others = calls
    more = f" (and {len(others)} more)" if others else ""
    return TransactionMisuse(
        f"{instruction_location(code, offset)}: {name}(…) was not awaited; "
        f"write `await {name}(…)`{more}"
    )
