"""How many jobs of one handler a worker may have started when it dies."""

from typing import Any, cast

import pytest

from onceward import Event, Transaction
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.work.definition.batches import make_batch_handler
from onceward.work.definition.handlers import Handler, make_handler
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.runner import MAX_BATCH_JOBS, JobRunner
from onceward.work.settling.settlement import SettlementPolicy
from tests.factories import make_outside_calls

WORKERS = 3


async def handle(event: Event[Any], tx: Transaction) -> None: ...


async def handle_all(events: list[Event[Any]], tx: Transaction) -> None: ...


ALONE = make_handler(handle, ["a"])
SHARING = make_handler(handle, ["a"], transaction="shared")
BATCHED = make_batch_handler(handle_all, ["a"])


SLOTS: list[tuple[tuple[Handler, ...], int]] = [
    ((), WORKERS),
    ((ALONE,), WORKERS),
    ((ALONE, SHARING), MAX_BATCH_JOBS),
    ((ALONE, BATCHED), MAX_BATCH_JOBS),
]


def test_a_handler_may_have_started_as_many_jobs_as_fit_into_its_calls(
    subtests: pytest.Subtests,
) -> None:
    for handlers, slots in SLOTS:
        with subtests.test(handlers=[handler.name for handler in handlers]):
            store = cast("Store", None)
            named = {str(number): handler for number, handler in enumerate(handlers)}
            runner = JobRunner(
                queue=store,
                handlers=named,
                settlement_policy=SettlementPolicy(
                    base_seconds=1, max_seconds=1, random=lambda: 0.0
                ),
                clock=SystemClock(),
                failpoints=Failpoints(),
                abandoned_calls=AbandonedCalls(named, limit=1, clock=SystemClock()),
                outside_calls=make_outside_calls(store),
            )
            assert runner.slots(Settings(workers=WORKERS)) == slots
