"""The heartbeat of a worker, beside a registry that fails."""

import asyncio
from collections.abc import Collection, Sequence

import pytest

from onceward.errors import StoreUnavailable
from onceward.model.workers import HEALTHY, LiveWorker, WorkerHealth
from onceward.work.claiming import heartbeat
from onceward.work.claiming.heartbeat import Heartbeat


class FailingRegistry:
    """A registry whose first renewals raise."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.starts: list[bool] = []
        self.renewed_often = asyncio.Event()

    async def renew_worker(
        self,
        worker: str,
        handlers: Sequence[str],
        health: WorkerHealth = HEALTHY,
        *,
        is_start: bool,
    ) -> None:
        self.starts.append(is_start)
        if self.errors:
            raise self.errors.pop(0)
        if self.starts.count(False) == 2:
            self.renewed_often.set()

    async def remove_worker(self, worker: str) -> None:
        raise StoreUnavailable("down")

    async def queued_handlers(self, names: Collection[str]) -> frozenset[str]:
        raise NotImplementedError

    async def live_workers(self) -> list[LiveWorker]:
        return []


async def test_errors_delay_the_first_heartbeat_and_end_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.0)
    registry = FailingRegistry(StoreUnavailable("down"), RuntimeError("a defect"))
    beat = Heartbeat(registry, worker="w", handlers=["credit"])
    task = asyncio.create_task(beat.run())
    async with asyncio.timeout(5):
        await registry.renewed_often.wait()
    task.cancel()
    assert registry.starts[:5] == [True, True, True, False, False]
    assert caplog.text.count("RuntimeError: a defect") == 1
    await beat.end()  # raises nothing
