"""Opens the circuit to a service while it fails, and logs that once."""

from __future__ import annotations

import logging
from typing import Final

from onceward.runtime.clock import Clock
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.runtime.redact import as_sentence

MAX_TIMEOUTS: Final = 3
"""Timeouts in a row that open the circuit. One may be the machine's fault."""


class Breaker:
    """The circuit to a service: closed while the service is used, open while it fails.

    It logs once when it opens and once when it closes. `name` is public, `location` is for the log.
    """

    def __init__(
        self, name: str, location: str, consequence: str, clock: Clock, log: logging.Logger
    ) -> None:
        self._name = name
        self._location = location
        self._consequence = consequence
        self._clock = clock
        self._log = log
        self._timeouts = 0
        self._opened_at: float | None = None
        self._kind = ""

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open, so that the service is not used."""
        return self._opened_at is not None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warning while it is open. It is public: it has no host."""
        if not self.is_open:
            return ()
        text = f"{self._name} is not used: {self._kind}. {self._consequence}."
        return (f"{text} The log {self._log.name} has the details.",)

    def record_timeout(self) -> bool:
        """Count a timeout; open after several in a row. Return whether it is open."""
        self._timeouts += 1
        if self._timeouts >= MAX_TIMEOUTS:
            self.open("it is too slow", f"{self._timeouts} requests in a row timed out")
        return self.is_open

    def record_success(self) -> None:
        """End a row of timeouts."""
        self._timeouts = 0

    def open(self, kind: str, reason: str) -> None:
        """Stop using the service. `kind` is public, `reason` is for the log."""
        self._kind = kind
        if self._opened_at is not None:
            return
        self._opened_at = self._clock.monotonic()
        message = "%s at %s is not used for now: %s %s."
        arguments = (self._name, self._location, as_sentence(reason), self._consequence)
        self._log.warning(message, *arguments, extra=LogFields(error=reason))

    def close(self) -> None:
        """Use the service again."""
        self._timeouts = 0
        if self._opened_at is None:
            return
        seconds = self._clock.monotonic() - self._opened_at
        self._opened_at = None
        message = "%s at %s is used again, after %s s"
        arguments = (self._name, self._location, seconds_text(seconds))
        self._log.warning(message, *arguments, extra=LogFields(seconds=round(seconds, 1)))
