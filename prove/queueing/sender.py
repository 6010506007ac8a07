"""A sender of the queue's events: at a steady rate and in bursts, until each is accepted."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prove.client import Address, FailoverClient
from prove.queueing.events import QueueEvent
from prove.request_sender import RequestSender
from support.client_history import Outcome, outcome_of

CONNECTIONS = 12
RETRY_SECONDS = 0.05


@dataclass(slots=True)
class Sent:
    """An event, the start of its first request, and the first response that accepted it."""

    event: QueueEvent
    first_sent: float
    accepted_at: float = 0.0
    is_rejected: bool = False


class Sender(RequestSender[QueueEvent]):
    """Sends events at a rate, and bursts of others beside them."""

    idle_seconds = 0.01

    def __init__(self, addresses: Callable[[], Sequence[Address]]) -> None:
        super().__init__(addresses, connections=CONNECTIONS, name="sender")
        self.sent: dict[str, Sent] = {}
        self._steady: Iterator[QueueEvent] | None = None

    def send_at(self, rate: float, events: Iterator[QueueEvent]) -> None:
        """Send events at this rate from now on."""
        self._due = time.monotonic()
        self._steady, self.rate = events, rate

    def send_now(self, events: Iterable[QueueEvent]) -> None:
        """Send events as fast as possible, beside the steady ones."""
        self._at_once.extend(events)

    def pause(self) -> None:
        """Send no more events at a steady rate."""
        self._steady = None

    def _next_steady(self) -> QueueEvent | None:
        events = self._steady  # `pause` may remove it in the other thread
        return None if events is None else next(events)

    async def _deliver(self, client: FailoverClient, request: QueueEvent) -> None:
        sent = self.sent[request.id] = Sent(request, time.time())
        while not self._is_stopped:
            outcome = outcome_of(*await client.request("POST", request.path, request.body))
            if outcome is Outcome.UNKNOWN:
                client.fail_over()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            sent.accepted_at, sent.is_rejected = time.time(), outcome is Outcome.REJECTED
            return
