"""The ports of what processes watch: workers, pauses, and events that no handler wanted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from onceward.model.admin import Pause
from onceward.model.jobs import UnroutedType
from onceward.model.workers import HEALTHY, LiveWorker, WorkerHealth


class WorkerRegistry(Protocol):
    """The workers that are alive, in any process."""

    async def renew_worker(
        self,
        worker: str,
        handlers: Sequence[str],
        health: WorkerHealth = HEALTHY,
        *,
        is_start: bool,
    ) -> None:
        """Store that a worker is alive, with its handlers. `is_start` sets when it started."""

    async def remove_worker(self, worker: str) -> None:
        """Delete the row of a worker that stopped."""

    async def live_workers(self) -> list[LiveWorker]:
        """Return the workers whose last heartbeat is recent, by name."""

    async def queued_handlers(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the handlers that have a queued job."""


class Pauses(Protocol):
    """The handlers and sources that operators have paused."""

    async def pauses(self) -> list[Pause]:
        """Return the handlers and sources that are paused."""


class UnroutedEvents(Protocol):
    """The recorded events that no handler wanted."""

    async def unrouted_types(self, after: int, *, limit: int) -> list[UnroutedType]:
        """Return the types of the newest `limit` events after an id that no handler wanted.

        Each has the id of its newest event; the oldest of these comes first.
        """

    async def routed_sources(self, *, limit: int) -> frozenset[str]:
        """Return the sources of those among the newest `limit` events that a handler wanted."""

    async def events_in_review(self, *, limit: int) -> int:
        """Return the number of events that wait for review, up to a limit."""
