"""The time in which a worker can claim no jobs: its start, its reason and its log lines."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from onceward.errors import StoreError
from onceward.runtime.clock import Clock
from onceward.runtime.error_text import describe, public_reason
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.worker")

REPORT_INTERVAL_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Outage:
    began_at: datetime
    began: float
    reported: float
    reason: str


class ClaimOutage:
    """Logs failed claims: a warning at first, and an error every minute while they last."""

    def __init__(self, worker: str, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._outage: _Outage | None = None

    @property
    def since(self) -> datetime | None:
        """When the claims began to fail; None if the last one succeeded."""
        return self._outage.began_at if self._outage else None

    @property
    def reason(self) -> str:
        """Why the last claim failed, fit for everyone to see."""
        return self._outage.reason if self._outage else ""

    def claim_failed(self, error: StoreError) -> None:
        """Note a failed claim, and log the outage when it begins and once a minute."""
        now = self._clock.monotonic()
        reason = describe(error)
        if self._outage is None:
            began_at = datetime.fromtimestamp(self._clock.now(), UTC)
            self._outage = _Outage(began_at, now, now, public_reason(error))
            fields = LogFields(worker=self._worker, error=reason)
            message = "no jobs can be claimed; retrying every second: %s"
            _log.warning(message, reason, extra=fields)
            return
        self._outage.reason = public_reason(error)
        if now - self._outage.reported >= REPORT_INTERVAL_SECONDS:
            self._outage.reported = now
            seconds = now - self._outage.began
            fields = LogFields(worker=self._worker, error=reason, seconds=round(seconds, 1))
            message = "no jobs could be claimed for %.0f s; still retrying every second: %s"
            _log.error(message, seconds, reason, extra=fields)

    def claim_succeeded(self) -> None:
        """End the outage, if there is one."""
        if self._outage is not None:
            seconds = self._clock.monotonic() - self._outage.began
            fields = LogFields(worker=self._worker, seconds=round(seconds, 1))
            _log.warning("jobs can be claimed again, after %.0f s", seconds, extra=fields)
            self._outage = None
