"""A sender of the queue's events: at a steady rate and in bursts, until each is accepted."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import uvloop

from prove.client import Address, FailoverClient
from prove.queueing.events import QueueEvent
from support.client_history import Outcome, outcome_of

CONNECTIONS = 12
IDLE_SECONDS = 0.01
RETRY_SECONDS = 0.05
MAX_LAG_SECONDS = 0.5


@dataclass(slots=True)
class Sent:
    """An event, the start of its first request, and the first response that accepted it."""

    event: QueueEvent
    first_sent: float
    accepted_at: float = 0.0
    is_rejected: bool = False


class Sender:
    """Sends from a thread of its own. `steady` and `rate` may be changed at any time."""

    def __init__(self, addresses: Callable[[], Sequence[Address]]) -> None:
        self.sent: dict[str, Sent] = {}
        self.steady: Iterator[QueueEvent] | None = None
        self.rate = 0.0
        self._burst: deque[QueueEvent] = deque()
        self._in_progress = 0
        self._due = 0.0
        self._addresses = addresses
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        """Start to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the requests in flight. Raise the exception that ended the thread, if any."""
        self._is_stopped = True
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def send_at(self, rate: float, events: Iterator[QueueEvent]) -> None:
        """Send events at this rate from now on."""
        self._due = time.monotonic()
        self.steady, self.rate = events, rate

    def send_now(self, events: Iterable[QueueEvent]) -> None:
        """Send events as fast as possible, beside the steady ones."""
        self._burst.extend(events)

    def pause(self) -> None:
        """Send no more events at a steady rate."""
        self.steady = None

    @property
    def unresolved(self) -> int:
        """How many requests were not accepted yet."""
        return self._in_progress + len(self._burst)

    def _run(self) -> None:
        try:
            uvloop.run(self._run_connections())
        except BaseException as error:  # noqa: BLE001 - `stop` raises it in the other thread
            self._failure = error

    async def _run_connections(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(CONNECTIONS):
                group.create_task(self._run_connection(index))

    async def _run_connection(self, index: int) -> None:
        client = FailoverClient(self._addresses, index)
        while not self._is_stopped:
            event = self._next()
            if event is None:
                await asyncio.sleep(IDLE_SECONDS)
                continue
            self._in_progress += 1
            await self._deliver(client, event)
            self._in_progress -= 1
        client.close()

    def _next(self) -> QueueEvent | None:
        if self._burst:
            return self._burst.popleft()
        now = time.monotonic()
        if self.steady is None or self._due > now:
            return None
        self._due = max(self._due, now - MAX_LAG_SECONDS) + 1 / self.rate
        return next(self.steady)

    async def _deliver(self, client: FailoverClient, event: QueueEvent) -> None:
        sent = self.sent[event.id] = Sent(event, time.time())
        while not self._is_stopped:
            outcome = outcome_of(*await client.request("POST", event.path, event.body))
            if outcome is Outcome.UNKNOWN:
                client.fail_over()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            sent.accepted_at, sent.is_rejected = time.time(), outcome is Outcome.REJECTED
            return
