"""A job whose lease another worker has got is not taken for done."""

from typing import Any

import pytest

from onceward import Event, Transaction
from onceward.model.jobs import JobStatus
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.work.definition.functions import HandlerFunction
from onceward.work.definition.handlers import make_handler
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.runner import JobRunner
from onceward.work.settling.settlement import SettlementPolicy
from support.database import RawDatabase
from tests.factories import leased_job, make_outside_calls


async def without_statements(event: Event[Any]) -> None: ...


async def with_statements(event: Event[Any], tx: Transaction) -> None:
    await tx.execute("SELECT 1")


@pytest.mark.parametrize("function", [without_statements, with_statements])
async def test_a_job_whose_lease_was_lost_meanwhile_is_not_done(
    store: Store, raw_db: RawDatabase, function: HandlerFunction
) -> None:
    handlers = {"credit": make_handler(function, ["invoice.paid"], name="credit")}
    clock = SystemClock()
    runner = JobRunner(
        queue=store,
        handlers=handlers,
        settlement_policy=SettlementPolicy(base_seconds=1, max_seconds=1, random=lambda: 0.0),
        clock=clock,
        failpoints=Failpoints(),
        abandoned_calls=AbandonedCalls(handlers, limit=1, clock=clock),
        outside_calls=make_outside_calls(store),
    )
    token, job = await leased_job(store)
    raw_db.rows("UPDATE onceward.leases SET token = 'of another worker'")
    assert await runner.run(token, job) is False
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS
