"""The value that a handler returned: refused if it shows a mistake, else ignored with a warning."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Final

from onceward.errors import PermanentError
from onceward.runtime.code_location import definition_line
from onceward.runtime.log_fields import LogFields
from onceward.runtime.value_kind import kind_of

_FRAMEWORKS: Final = ("aiohttp", "fastapi", "litestar", "starlette", "werkzeug")
_HTTP_ERROR: Final = (
    "%s raised an HTTPException, which changes no response: the event was accepted before; "
    "raise PermanentError to fail the job, or another error to retry it"
)
_INLINE_HTTP_ERROR: Final = (
    "%s raised an HTTPException, whose status is not used: the sender got 500, as after any error "
    "of an inline source; raise another error with the reason, such as PermanentError"
)

_log = logging.getLogger("onceward.work")


class ResultCheck:
    """Checks the values that one handler returns. Only None and True are expected.

    `subject` is what the function is, for errors, and `advice` what to do instead of returning.
    """

    def __init__(
        self,
        handler: str,
        function: Callable[..., object],
        *,
        label: str,
        subject: str = "the handler",
        advice: str = "raise an error to fail the job",
    ) -> None:
        self._handler = handler
        self._subject = subject
        self._advice = advice
        self._function = function
        self._label = label
        self._has_warned = False
        self._http_warnings: set[str] = set()

    def check(self, result: object) -> None:
        """Raise PermanentError for a body that never ran and for an error that was not raised.

        Warn once about any other value: it may mean a failure, which only an error can report.
        """
        if fault := _fault(self._function, result):
            fault = f"{self._subject} {fault}"
            line = definition_line(self._function)
            message = f"{line}: {fault}" if line else fault
            raise PermanentError(message)
        if result is None or result is True or self._has_warned:
            return
        self._has_warned = True
        is_future = isinstance(result, asyncio.Future)
        advice = f"await it in {self._subject}" if is_future else self._advice
        message = "%s returned %s, which is ignored; %s"
        fields = LogFields(handler=self._handler)
        _log.warning(message, self._label, kind_of(result), advice, extra=fields)

    def check_error(self, error: BaseException, *, is_inline: bool = False) -> None:
        """Warn once about an error that a framework turns into a response, which nobody does here.

        The provider already got its answer when the event was recorded; an inline source answers
        500 to every error.
        """
        message = _INLINE_HTTP_ERROR if is_inline else _HTTP_ERROR
        if message not in self._http_warnings and _is_http_error(error):
            self._http_warnings.add(message)
            _log.warning(message, self._label, extra=LogFields(handler=self._handler))


def _is_http_error(error: BaseException) -> bool:
    try:
        return any(
            kind.__name__ == "HTTPException" and kind.__module__.partition(".")[0] in _FRAMEWORKS
            for kind in type(error).__mro__
        )
    except BaseException:  # noqa: BLE001 - the attributes of a class may be user code
        return False


def _fault(function: Callable[..., object], result: object) -> str | None:
    """Return the mistake that a returned value shows, or None."""
    if isinstance(result, BaseException):
        return _returned_error(type(result))
    if isinstance(result, type) and issubclass(result, BaseException):
        return _returned_error(result)
    if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if not inspect.isasyncgen(result):
            result.close()
        kind, name = type(result).__name__, result.__name__
        fault = f"returned the {kind} of {name}() instead of running it"
        if not inspect.iscoroutine(result):
            return fault
        is_async = inspect.iscoroutinefunction(function)
        return f"{fault}; {'' if is_async else 'make it async def and '}write await {name}()"
    return None


def _returned_error(kind: type[BaseException]) -> str:
    name = kind.__name__
    return f"returned {name} instead of raising it; write raise {name}(…)"
