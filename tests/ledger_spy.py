"""A ledger between a recorder and a store, and what tests of recorders ask."""

import asyncio
from collections.abc import Sequence

from onceward.errors import RequestRefused
from onceward.model.events import Arrival, Receipt
from onceward.ports import BatchGroup, Store
from onceward.receive.pending import Pending
from tests.factories import EVERYTHING


class Spy:
    """A real ledger that collects its batches, and blocks or fails on demand."""

    def __init__(self, store: Store, *, max_writers: int = 1) -> None:
        self.max_writers = max_writers
        self.batches: list[list[Arrival]] = []
        self.began = asyncio.Event()
        """Set when a write begins."""
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.failing: Exception | None = None
        self.delay_seconds = 0.0
        self._store = store

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]

    def batch_group(self, arrival: Arrival) -> BatchGroup:
        return self._store.batch_group(arrival)

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        self.batches.append(list(arrivals))
        self.began.set()
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        await self.unblocked.wait()
        if self.failing is not None:
            raise self.failing
        return await self._store.record(arrivals)

    async def ready(self) -> None:
        if self.failing is not None:
            raise self.failing
        await self._store.ready()


async def errors_of(pending: Sequence[Pending]) -> list[RequestRefused]:
    results = await asyncio.gather(*pending, return_exceptions=True)
    return [result for result in results if isinstance(result, RequestRefused)]


async def ids(store: Store) -> set[str]:
    return {item.event_id for item in await store.events(EVERYTHING)}
