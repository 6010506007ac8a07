"""Jobs that share a transaction: one commit for all of them, and each by itself when one fails.

Only handlers that ask for `event` and `tx` and nothing else come into question, because what these
do is undone with the transaction, and only quick ones, because all of them hold their locks until
the last has returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Self

from onceward.errors import LeaseLost
from onceward.model.jobs import Job, Lease
from onceward.ports import Queue, StoreTransaction
from onceward.runtime.clock import Clock
from onceward.work.transaction import UnitOfWork

Held = tuple[Lease, Job]
"""A job, and the lease under which it is to be settled."""

TURN_SECONDS: Final = 0.02
"""After how long a turn commits what it has: others may wait for its locks."""

HANDLER_SECONDS: Final = 0.25
"""How long one handler may take in a shared transaction; one that needs more gets its own."""

LONG_SECONDS: Final = 0.1
QUICK_SECONDS: Final = 0.01
_RUNS_TO_KNOW: Final = 3
_MEAN_WEIGHT: Final = 0.1
_MOST_NOTED_SECONDS: Final = 4 * QUICK_SECONDS  # one hiccup of the machine says little


class HandlerLatency:
    """How long a handler takes, as far as was seen."""

    def __init__(self) -> None:
        self._runs = 0
        self._mean_seconds = 0.0

    @property
    def is_quick(self) -> bool:
        """Whether it is known to be quick."""
        return self._runs >= _RUNS_TO_KNOW and self._mean_seconds <= QUICK_SECONDS

    def note(self, seconds: float, in_statements: float = 0.0) -> None:
        """It ran for so long, and so much of that in its statements.

        Statements can wait for each other in one transaction as well as in several: only what it
        does beside them counts, unless they take so long that others should not wait for it.
        """
        beside = seconds if seconds > LONG_SECONDS else seconds - in_statements
        seconds = min(beside, _MOST_NOTED_SECONDS)
        self._runs += 1
        weight = max(_MEAN_WEIGHT, 1 / self._runs)
        self._mean_seconds += weight * (seconds - self._mean_seconds)


class AdaptiveBatchSize:
    """How many jobs to run in one transaction: more while it goes well, fewer when it does not.

    Twice as many until it breaks for the first time, and then one more each time: on rows that
    many jobs share, it comes to rest where turns seldom get into each other's way.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._has_broken = False
        self.size = min(2, most)

    def went_well(self, jobs: int) -> None:
        """So many were committed together."""
        if jobs >= self.size:
            more = 1 if self._has_broken else self.size
            self.size = min(self.size + more, self._most)

    def broke(self) -> None:
        """Nothing could be committed."""
        self._has_broken = True
        self.size = max(self.size // 2, 1)


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of jobs that were to share a transaction."""

    settled: Sequence[Held] = ()
    apart: Sequence[Held] = ()
    """To be run again, each in a transaction of its own."""
    left: Sequence[Held] = ()
    """To be run again, or for the first time, in any way."""


class Progress:
    """How far a turn has come, and how long the handler that runs now may still take."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = self._since = clock.monotonic()
        self._unit: UnitOfWork | None = None
        self.count = 0

    @property
    def is_running(self) -> bool:
        """Whether a handler has begun and not ended."""
        return self._unit is not None

    @property
    def is_enough(self) -> bool:
        """Whether it is time to commit."""
        return self._since - self._began > TURN_SECONDS

    def begin(self, unit: UnitOfWork) -> None:
        """The next handler begins."""
        self._unit = unit

    def end(self) -> None:
        """It has returned, and nothing is wrong."""
        self._unit = None
        self._since = self._clock.monotonic()
        self.count += 1

    def remaining(self) -> float:
        """How many seconds remain to the handler that runs now."""
        return self._since + HANDLER_SECONDS - self._clock.monotonic()

    async def leave(self) -> None:
        """Let nothing more be written by a handler that would not be broken off."""
        if self._unit is not None:
            await self._unit.__aexit__(None, None, None)


class SharedTransaction:
    """One session for the units of work of several jobs, begun when the first of them needs it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._context: AbstractAsyncContextManager[StoreTransaction] | None = None
        self._session: StoreTransaction | None = None
        self._whereabouts: Callable[[], str] = str

    async def __aenter__(self) -> Self:
        """Nothing begins here."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Roll back what was not committed."""
        context, self._context = self._context, None
        if context is not None:
            await context.__aexit__(None, None, None)

    def join(self, location: Callable[[], str]) -> AbstractAsyncContextManager[StoreTransaction]:
        """The session, for one more handler."""
        self._whereabouts = location
        return _Joined(self.open)

    async def open(self) -> StoreTransaction:
        """The session, begun if it is not."""
        if self._session is None:
            self._context = self._queue.begin(self._place, shared=True)
            self._session = await self._context.__aenter__()
        return self._session

    def _place(self) -> str:
        """Where the handler is that runs now."""
        return self._whereabouts()

    async def settle(self, held: Sequence[Held]) -> None:
        """Commit all that was written, with the done of each job. Raises LeaseLost."""
        jobs: dict[str, list[int]] = defaultdict(list)
        for lease, job in held:
            jobs[lease.token].append(job.id)
        if self._session is None:
            for token, ids in jobs.items():
                if not await self._queue.settle_done(token, *ids):
                    raise LeaseLost
            return
        for token, ids in jobs.items():
            await self._session.settle(token, *ids)
        await self._session.commit()


class _Joined(AbstractAsyncContextManager[StoreTransaction]):
    """One handler's part of a shared transaction: it ends without ending the transaction."""

    def __init__(self, open_: Callable[[], Awaitable[StoreTransaction]]) -> None:
        self._open = open_

    async def __aenter__(self) -> StoreTransaction:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        pass
