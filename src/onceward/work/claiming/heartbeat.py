"""The heartbeat of a worker, by which receiving processes know its handlers and its health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from onceward.errors import StoreError
from onceward.model.workers import HEARTBEAT_SECONDS, WorkerHealth
from onceward.ports.watching import WorkerRegistry
from onceward.runtime.error_text import locate
from onceward.runtime.log_fields import LogFields
from onceward.runtime.timeouts import GRACE_SECONDS

_log = logging.getLogger("onceward.worker")


class Heartbeat:
    """Renews the row of one worker until it is cancelled."""

    def __init__(
        self,
        registry: WorkerRegistry,
        *,
        worker: str,
        handlers: Sequence[str],
        health: Callable[[], WorkerHealth] = WorkerHealth,
    ) -> None:
        self._registry = registry
        self._worker = worker
        self._handlers = handlers
        self._health = health

    async def run(self) -> None:
        """Renew the row now and after every interval. An outage only delays the next renewal."""
        is_start = True
        while True:
            try:
                await self._registry.renew_worker(
                    self._worker, self._handlers, self._health(), is_start=is_start
                )
                is_start = False
            except StoreError:
                pass  # the claims log the outage
            except Exception as error:  # noqa: BLE001 - without a heartbeat, the worker looks dead
                reason = locate(error)
                fields = LogFields(worker=self._worker, error=reason)
                _log.error("heartbeat could not be written: %s", reason, extra=fields)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def end(self) -> None:
        """Delete the row after a clean stop. If that fails, the row becomes stale."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._registry.remove_worker(self._worker)
