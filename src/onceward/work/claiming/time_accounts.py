"""The time that the handlers of a worker have used, to start the one that used the least."""

from __future__ import annotations

from collections.abc import Iterable


class TimeAccounts:
    """The time that each handler was charged for.

    A handler that comes back with jobs begins where the others are: it has neither saved up the
    time that it did not use, nor does it owe time that nobody else wanted.
    """

    def __init__(self, handlers: Iterable[str]) -> None:
        self._used_seconds = dict.fromkeys(handlers, 0.0)
        self._present_seconds = 0.0
        """The account of the handler that was charged last, before the charge."""

    def rejoin(self, handler: str) -> None:
        """Bring the account of a handler that gets jobs up to the present.

        A handler with queued jobs is there already, unless it has all the slots that it may have.
        """
        self._used_seconds[handler] = max(self._used_seconds[handler], self._present_seconds)

    def charge(self, handler: str, seconds: float) -> None:
        """Charge a handler for a job that starts."""
        self._present_seconds = max(self._present_seconds, self._used_seconds[handler])
        self._used_seconds[handler] += seconds

    def least_used(self, handlers: Iterable[str]) -> str | None:
        """Return the handler that has used the least time, or None if there is none."""
        return min(handlers, key=self._used_seconds.__getitem__, default=None)

    def by_use(self, handlers: Iterable[str]) -> list[str]:
        """Return handlers in the order of the time that they used."""
        return sorted(handlers, key=self._used_seconds.__getitem__)
