"""Handlers that share a worker with the measured one, each with a backlog of jobs."""

import asyncio
from typing import Final

FAILING, QUICK, SLOW = KINDS = ("failing", "quick", "slow")
BACKLOGS: Final = {FAILING: 20_000, QUICK: 20_000, SLOW: 1_000}

NAME: Final = "neighbour"
EVENT_TYPE: Final = "neighbour.made"
SLOW_SECONDS: Final = 1.0
MAX_ATTEMPTS: Final = 3


class NeighbourFailed(Exception):
    """The failure of every job of the failing neighbour."""


async def run_neighbour(kind: str) -> None:
    """Fail, wait or return at once, without a statement."""
    if kind == FAILING:
        raise NeighbourFailed("this handler always fails")
    if kind == SLOW:
        await asyncio.sleep(SLOW_SECONDS)
