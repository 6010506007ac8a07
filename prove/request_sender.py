"""A thread that sends requests over many connections, each until its outcome is known."""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, TypeVar

import uvloop

from prove.client import Address, FailoverClient

MAX_LAG_SECONDS = 0.5
"""How far the requests may fall behind the rate. Those that are later are left out."""

R = TypeVar("R")


class RequestSender(ABC, Generic[R]):
    """Sends requests at a rate, which may be changed at any time, and others at once."""

    idle_seconds = 0.02

    def __init__(
        self, addresses: Callable[[], Sequence[Address]], *, connections: int, name: str
    ) -> None:
        self.rate = 1.0
        self._at_once: deque[R] = deque()
        self._in_progress = 0
        self._due = 0.0
        self._addresses = addresses
        self._connections = connections
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the requests in flight. Raise the exception that ended the thread, if any."""
        self._is_stopped = True
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def unresolved(self) -> int:
        """How many requests have no final response yet."""
        return self._in_progress + len(self._at_once)

    @abstractmethod
    def _next_steady(self) -> R | None:
        """Return the next request at the rate; None while there is none."""

    @abstractmethod
    async def _deliver(self, client: FailoverClient, request: R) -> None:
        """Send a request until its outcome is known, or until `stop`."""

    def _tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what the thread runs at the same time."""
        for index in range(self._connections):
            yield self._run_connection(FailoverClient(self._addresses, index))

    def _run(self) -> None:
        try:
            uvloop.run(self._run_tasks())
        except BaseException as error:  # noqa: BLE001 - `stop` raises it in the other thread
            self._failure = error

    async def _run_tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            for task in self._tasks():
                group.create_task(task)

    async def _run_connection(self, client: FailoverClient) -> None:
        while (request := await self._next()) is not None:
            self._in_progress += 1
            await self._deliver(client, request)
            self._in_progress -= 1
        client.close()

    async def _next(self) -> R | None:
        """Return the next request once it is due; None after `stop`."""
        while not self._is_stopped:
            if self._at_once:
                return self._at_once.popleft()
            now = time.monotonic()
            if self._due <= now and (request := self._next_steady()) is not None:
                self._due = max(self._due, now - MAX_LAG_SECONDS) + 1 / self.rate
                return request
            await asyncio.sleep(self.idle_seconds)
        return None
