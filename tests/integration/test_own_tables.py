"""A handler that changes Onceward's own rows fails its job, instead of running for ever."""

import pytest

from onceward import Inbox, Transaction
from onceward.model.jobs import JobStatus
from onceward.work.definition.handlers import TransactionMode
from tests.inprocess import run_inbox

CHANGES = {
    "the status": "UPDATE onceward.jobs SET status = 'done'",
    "the failure": "UPDATE onceward.jobs SET status = 'failed', failure_type = 'permanent'",
    "the job": "DELETE FROM onceward.jobs",
    "the lease": "DELETE FROM onceward.leases",
}


@pytest.mark.parametrize("transaction", ["own", "shared"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_the_job_fails_and_the_handler_runs_at_most_twice(
    database_url: str, change: str, transaction: TransactionMode
) -> None:
    is_sqlite = database_url.startswith("sqlite")
    statement = change.replace("onceward.", "onceward_") if is_sqlite else change
    inbox, runs = Inbox(), []

    @inbox.on("meddle", transaction=transaction)
    async def meddle(tx: Transaction) -> None:
        runs.append(1)
        await tx.execute(statement)

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("meddle")
    assert (job.status, job.failure_type, job.attempts) == (JobStatus.FAILED, "permanent", 1)
    assert "the handler changed rows of Onceward's tables" in (job.last_error or "")
    assert len(runs) <= 2  # in a batch, and alone
