"""A load generator: many senders that retry each request until its outcome is known."""

import asyncio
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
import uvloop

from prove.client import Address, FailoverClient
from prove.history import History
from prove.workload import Request
from support.client_history import Outcome, Requeue, outcome_of

RETRY_SECONDS = 0.02
MAX_RETRY_SECONDS = 0.25
IDLE_SECONDS = 0.02
BURST_SECONDS = 0.5
REQUEUE_INTERVAL_SECONDS = 0.1
REQUEUE_BODY = b'{"actor":"ann","reason":"retry after a fix"}'


class LoadGenerator:
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
        self.history = history
        self.limit = 0
        self.rate = 1.0
        self.is_paused = False
        self.is_requeueing = False
        self._in_progress = 0
        self._repeats: deque[Request] = deque()
        self._addresses = addresses
        self._connections = connections
        self._requests = history.workload.requests()
        self._rng = random.Random(seed)  # noqa: S311 - reproducible
        self._due = 0.0
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load generator", daemon=True)

    @property
    def unresolved(self) -> int:
        """How many requests have no final response yet."""
        return self._in_progress + len(self._repeats)

    def repeat(self, numbers: Iterable[int]) -> None:
        """Send events again, beyond the limit and without regard to the rate."""
        self._repeats.extend((number, 0) for number in numbers)

    def start(self) -> None:
        """Start to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the requests in flight. Raise the exception that ended the thread, if any."""
        self._is_stopped = True
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            uvloop.run(self._run_senders())
        except BaseException as error:  # noqa: BLE001 - `stop` raises it in the other thread
            self._failure = error

    async def _run_senders(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(self._connections):
                group.create_task(self._run_sender(index))
            group.create_task(self._run_requeuer())

    async def _run_sender(self, index: int) -> None:
        client = FailoverClient(self._addresses, index)
        while (request := await self._next()) is not None:
            self._in_progress += 1
            await self._deliver(client, *request)
            self._in_progress -= 1
        client.close()

    async def _next(self) -> Request | None:
        """Return the next request once it is due; None after `stop`."""
        while not self._is_stopped:
            if self._repeats:
                return self._repeats.popleft()
            now = time.monotonic()
            is_allowed = not self.is_paused and self.history.workload.size < self.limit
            if is_allowed and self._due <= now:
                self._due = max(self._due, now - BURST_SECONDS) + 1 / self.rate
                return next(self._requests)
            await asyncio.sleep(IDLE_SECONDS)
        return None

    async def _deliver(self, client: FailoverClient, number: int, variant: int) -> None:
        """Send until the outcome is known, failing over after every second try."""
        body = self.history.workload.body(number, variant)
        for attempt in itertools.count():
            start = time.time()
            response = await client.request("POST", "/events/ingest", body)
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
