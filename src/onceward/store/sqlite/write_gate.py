"""The queue for SQLite's only write transaction: the receiver goes first."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

RECEIVER_TURNS: Final = 4
"""How often in a row the receiver may go before a worker that waits."""


class Gate:
    """Lets one in at a time. The receiver goes first, but does not keep workers out for ever."""

    def __init__(self) -> None:
        self._busy = False
        self._turns = 0
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._workers: deque[asyncio.Future[None]] = deque()

    async def enter(self, *, receiver: bool = False) -> None:
        """Wait for one's turn. Whoever entered must leave."""
        if not self._busy:
            self._busy = True
            return
        line = self._receivers if receiver else self._workers
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                with suppress(ValueError):
                    line.remove(turn)
            raise

    def leave(self) -> None:
        """Let the next one in."""
        turn = self._next()
        if turn is None:
            self._busy = False
        else:
            turn.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        while self._receivers or self._workers:
            receiver_first = self._receivers and (self._turns < RECEIVER_TURNS or not self._workers)
            self._turns = self._turns + 1 if receiver_first else 0
            turn = (self._receivers if receiver_first else self._workers).popleft()
            if not turn.done():
                return turn
        return None
