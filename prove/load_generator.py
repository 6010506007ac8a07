"""A load generator: many senders that retry each request until its outcome is known."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from prove.client import Address, FailoverClient
from prove.history import History
from prove.request_sender import RequestSender
from prove.workload import Request
from support.client_history import Outcome, Requeue, outcome_of

RETRY_SECONDS = 0.02
MAX_RETRY_SECONDS = 0.25
REQUEUE_INTERVAL_SECONDS = 0.1
REQUEUE_BODY = b'{"actor":"ann","reason":"retry after a fix"}'
ROUTE_BODY = b'{"handler":"credit","actor":"ann","reason":"a payment after all"}'
DISMISS_BODY = b'{"actor":"ann","reason":"not for us"}'


class LoadGenerator(RequestSender[Request]):
    """Sends a workload over many connections, from a thread of its own.

    `limit` is the number of events to send in total and `rate` the number of requests a second.
    Both may be changed at any time, and so may `is_paused` and `is_requeueing`.
    """

    def __init__(
        self,
        history: History,
        addresses: Callable[[], Sequence[Address]],
        *,
        connections: int,
        seed: int,
    ) -> None:
        super().__init__(addresses, connections=connections, name="load generator")
        self.history = history
        self.limit = 0
        self.is_paused = False
        self.is_requeueing = False
        self._requests = history.workload.requests()
        self._rng = random.Random(seed)  # noqa: S311 - reproducible

    def repeat(self, numbers: Iterable[int], variant: int = 0) -> None:
        """Send events again, beyond the limit and without regard to the rate."""
        self._at_once.extend((number, variant) for number in numbers)

    def _tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._tasks()
        yield self._run_requeuer()

    def _next_steady(self) -> Request | None:
        is_allowed = not self.is_paused and self.history.workload.size < self.limit
        return next(self._requests) if is_allowed else None

    async def _deliver(self, client: FailoverClient, request: Request) -> None:
        """Send until the outcome is known, failing over after every second try."""
        number, variant = request
        body = self.history.workload.body(number, variant)
        for attempt in itertools.count():
            start = time.time()
            response = await client.request("POST", self.history.workload.path(number), body)
            outcome = self.history.record(number, variant, response, start, time.time())
            if outcome is not Outcome.UNKNOWN or self._is_stopped:
                return
            if attempt % 2:
                client.fail_over()
            await asyncio.sleep(min(RETRY_SECONDS * 2**attempt, MAX_RETRY_SECONDS))

    async def _run_requeuer(self) -> None:
        client = FailoverClient(self._addresses, 0)
        while not self._is_stopped:
            await asyncio.sleep(REQUEUE_INTERVAL_SECONDS)
            if self.is_requeueing:
                await self._requeue_failed_job(client)
                await self._review_event(client)
                client.fail_over()
        client.close()

    async def _requeue_failed_job(self, client: FailoverClient) -> None:
        status, body = await client.request("GET", "/admin/jobs?status=failed&limit=50")
        if status != 200:
            return
        failed = [int(item["id"]) for item in msgspec.json.decode(body)["items"]]
        if failed:
            job = self._rng.choice(failed)
            status, body = await client.request("POST", f"/admin/jobs/{job}/requeue", REQUEUE_BODY)
            self.history.requeues.append(Requeue(job, outcome_of(status, body)))

    async def _review_event(self, client: FailoverClient) -> None:
        """Route or dismiss an event that waits for review. The ledger shows what came of it."""
        status, body = await client.request("GET", "/admin/events?status=review&limit=50")
        if status != 200:
            return
        waiting = [int(item["id"]) for item in msgspec.json.decode(body)["items"]]
        if waiting:
            event = self._rng.choice(waiting)
            action, body = self._rng.choice((("route", ROUTE_BODY), ("dismiss", DISMISS_BODY)))
            await client.request("POST", f"/admin/events/{event}/{action}", body)
