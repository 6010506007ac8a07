"""A handler that changes Onceward's own rows fails its job, instead of running for ever."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onceward import Event, Inbox, Transaction
from onceward.model.jobs import JobStatus
from onceward.work.definition.handlers import TransactionMode
from tests.inprocess import run_inbox

pytestmark = pytest.mark.every_store

CHANGES = {
    "the status": "UPDATE onceward.jobs SET status = 'done'",
    "the failure": "UPDATE onceward.jobs SET status = 'failed', failure_type = 'permanent'",
    "the job": "DELETE FROM onceward.jobs",
    "the lease": "DELETE FROM onceward.leases",
}


def changing(statement: str, runs: list[str]) -> Callable[..., Awaitable[None]]:
    async def meddle(event: Event[Any], tx: Transaction) -> None:
        runs.append(event.id)
        await tx.execute(statement)

    return meddle


async def test_the_job_fails_and_the_handler_runs_at_most_twice(
    database_url: str, subtests: pytest.Subtests
) -> None:
    is_sqlite = database_url.startswith("sqlite")
    inbox = Inbox()
    runs: list[str] = []
    modes: tuple[TransactionMode, ...] = ("own", "shared")
    cases = {f"{name}, {mode}": (mode, CHANGES[name]) for mode in modes for name in CHANGES}
    for name, (mode, change) in cases.items():
        running = change if "leases" in change else f"{change} WHERE finished_at IS NULL"
        statement = running.replace("onceward.", "onceward_") if is_sqlite else running
        inbox.on(name, transaction=mode, name=name)(changing(statement, runs))
    async with run_inbox(inbox, database_url) as bench:
        for name in cases:
            with subtests.test(name):
                await bench.post(name, event_id=name)
                await bench.wait_until_idle()
                job = await bench.job(name)
                outcome = job.status, job.failure_type, job.attempts
                assert outcome == (JobStatus.FAILED, "permanent", 1)
                assert "the handler changed rows of Onceward's tables" in (job.last_error or "")
                assert runs.count(name) in (1, 2)  # in a batch, and alone
