"""Cancellations of store operations at random moments, in this process.

Afterwards every connection, lock and transaction must be free again, nothing that was acknowledged
may be missing, and no work may be committed twice.
"""

import asyncio
import gc
import hashlib
import itertools
import random
import types
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import uvloop

from onceward.errors import OncewardError
from onceward.model.admin import OperatorAction, PageQuery
from onceward.model.events import INGEST_SOURCE, Arrival
from onceward.model.jobs import ClaimRequest, HandlerEntry, Job, Reschedule, Route
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import parse
from onceward.settings import Settings
from onceward.store.dialects import make_store
from prove import sabotage
from prove.probe_tables import TABLES
from prove.workbench import Workbench
from support.database import RawDatabase
from support.ledger_checker import Findings, Violation
from support.processes import ConditionTimeout, eventually_async

CONCURRENT_OPERATIONS = 24
"""More than there are connections, so that operations wait for each other."""

MAX_DELAY_SECONDS = 0.006
MAX_AWAITS = 24
ENDING_SECONDS = 10.0
FINISH_SECONDS = 30.0
PROBE_SECONDS = 0.5
MAX_TRANSACTIONS = 32
LEASE_SECONDS = 0.6
MAX_ATTEMPTS = 1_000
MAX_EVENTS = 1_000
FINISHERS = 4
HANDLER, TYPE = "credit", "payment.made"
WORKER = "prove"
ACTION = OperatorAction(actor="ann", authenticated_as="", reason="cancellations")

(INSERT_PROBE,) = parse("INSERT INTO probes (event, worker) VALUES (:event, 0)")
UNFINISHED = "SELECT count(*) FROM onceward.jobs WHERE status = 'queued'"
WRONG_RUNS = """
    SELECT e.event_id, j.status, count(p.event) FROM onceward.events e
    JOIN onceward.jobs j ON j.event = e.id LEFT JOIN probes p ON p.event = e.event_id
    GROUP BY e.event_id, j.status
    HAVING count(p.event) <> CASE WHEN j.status = 'done' THEN 1 ELSE 0 END
"""
SESSIONS = """
    SELECT 'a session of the closed store, ' || COALESCE(state, '') || ': ' || query
    FROM pg_stat_activity WHERE application_name = 'onceward'
"""
LEFT_BEHIND = """
    SELECT 'a transaction: ' || query FROM pg_stat_activity
    WHERE application_name = 'onceward' AND state <> 'idle'
    UNION ALL SELECT 'an advisory lock' FROM pg_locks WHERE locktype = 'advisory'
"""

Operation = Callable[[], Coroutine[Any, Any, object]]


@types.coroutine
def _cancelled_at(
    position: int, operation: Coroutine[Any, Any, object]
) -> Generator[Any, Any, object]:
    """Run a coroutine, and cancel the current task when it suspends for the position-th time."""
    task = asyncio.current_task()
    assert task is not None
    resume: Callable[[], Any] = partial(operation.send, None)
    for count in itertools.count():
        try:
            future = resume()
        except StopIteration as end:
            return end.value
        if count == position:
            task.cancel()
        try:
            yield future
        except BaseException as error:  # noqa: BLE001 - the coroutine handles it
            resume = partial(operation.throw, error)
        else:
            resume = partial(operation.send, None)
    raise AssertionError("unreachable")


def cancel_operations(bench: Workbench) -> None:
    """Cancel operations of a store, and check the store and the ledger."""
    count = bench.plan.cancellations
    with bench.stage("cancellations"), bench.server() as server:
        cancellations = Cancellations(
            server.create(), bench.rng, bench.progress("cancellations", count)
        )
        uvloop.run(cancellations.run(count))
        bench.add("cancellations", cancellations.findings)
        bench.result.tally += cancellations.tally


class Cancellations:
    """Random operations on one store, many of them cancelled."""

    def __init__(self, url: str, rng: random.Random, show: Callable[[int], None]) -> None:
        self.findings = Findings()
        self.tally: Counter[str] = Counter()
        self._ledger = RawDatabase(url)
        self._settings = Settings(
            database_url=url,
            allow_weak_durability=True,
            retry_base_seconds=0.01,
            retry_max_seconds=0.05,
        )
        self._store: Store = make_store(self._settings, Failpoints(), SystemClock())
        self._rng = rng
        self._show = show
        self._sent = 0
        self._acknowledged: set[str] = set()
        self._operations: list[Operation] = [
            self._record,
            self._record,
            self._work,
            self._work,
            self._fail,
            self._store.ready,
            lambda: self._store.jobs(PageQuery(limit=5)),
            lambda: self._store.renew(["unknown"], LEASE_SECONDS),
            lambda: self._store.requeue(1, ACTION),
        ]

    async def run(self, count: int) -> None:
        """Cancel this many operations, then check what is left."""
        async with self._opened():
            transactions = await self._open_transactions()
            senders = [self._cancel_until(count) for _ in range(CONCURRENT_OPERATIONS)]
            await asyncio.gather(*senders)
            await self._check_store(transactions)
            if not self.findings.counts:  # a store that leaks may have no connection left
                await self._finish_jobs()
        await self._check_closed()
        self._check_ledger()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        sabotage.apply()
        await self._store.open(serving=True)
        try:
            await self._store.register(
                [INGEST_SOURCE], [HandlerEntry(HANDLER, MAX_ATTEMPTS, (Route(TYPE),))], []
            )
            for statement in TABLES:
                self._ledger.rows(statement)
            yield
        finally:
            await self._store.close()

    async def _cancel_until(self, count: int) -> None:
        """Cancel operations, half of them after a time and half at one of their awaits."""
        while self.tally["cancellations"] < count:
            operation = asyncio.create_task(self._attempt(self._rng.choice(self._operations)))
            if self._rng.random() < 0.5:
                await asyncio.sleep(self._rng.uniform(0.0, MAX_DELAY_SECONDS))
                operation.cancel()
            done, _ = await asyncio.wait([operation], timeout=ENDING_SECONDS)
            if not done:
                detail = f"a cancelled operation did not end within {ENDING_SECONDS:g} s"
                self.findings.add(Violation.LEAKED, detail)
                return
            self.tally["cancellations"] += operation.cancelled()
            self._show(self.tally["cancellations"])

    async def _attempt(self, operation: Operation) -> None:
        """Run an operation until it ends, is cancelled, or reaches the await at which to cancel it.

        An error that the callers of the store expect is not a finding.
        """
        with suppress(OncewardError):
            await _cancelled_at(self._rng.randrange(MAX_AWAITS), operation())

    async def _record(self) -> None:
        arrivals = [self._arrival() for _ in range(self._rng.randint(1, 2))]
        await self._store.record([*arrivals, *arrivals[:1]])
        self._acknowledged.update(arrival.event_id for arrival in arrivals)

    def _arrival(self) -> Arrival:
        """Return a delivery of the next event; after the last, of the first again."""
        self._sent = self._sent % MAX_EVENTS + 1
        sha256 = hashlib.sha256(b"{}").digest()
        return Arrival(INGEST_SOURCE, f"event-{self._sent}", TYPE, None, sha256, b"{}", b"{}")

    async def _claim(self, limit: int = 4) -> tuple[str, tuple[Job, ...]]:
        token = uuid.UUID(int=self._rng.getrandbits(128)).hex
        claim = await self._store.claim(
            ClaimRequest(
                token=token,
                worker=WORKER,
                wanted={HANDLER: limit},
                limit=limit,
                solo=self._rng.random() < 0.5,
                slots=limit,
                lease_seconds=LEASE_SECONDS,
            )
        )
        return token, claim.lease.jobs if claim.lease else ()

    async def _work(self, limit: int = 4) -> None:
        """Run the handler of some jobs, each in a transaction of its own."""
        token, jobs = await self._claim(limit)
        for job in jobs:
            async with self._store.begin(str) as transaction:
                await transaction.run(INSERT_PROBE, {"event": job.event_id})
                await transaction.commit_done({token: [job.id]})

    async def _fail(self) -> None:
        token, jobs = await self._claim()
        for job in jobs:
            await self._store.settle_error(token, job.id, Reschedule(0.0, "again"), 0.1)

    async def _open_transactions(self) -> int:
        """Return how many transactions can be open at the same time."""
        opened = 0
        async with AsyncExitStack() as stack:
            with suppress(TimeoutError, OncewardError):
                while opened < MAX_TRANSACTIONS:
                    async with asyncio.timeout(PROBE_SECONDS):
                        await stack.enter_async_context(self._store.begin(str))
                    opened += 1
        return opened

    async def _check_store(self, transactions: int) -> None:
        """Check that every connection, lock and transaction is free again."""
        left = await self._open_transactions()
        if left < transactions:
            detail = f"{left} of {transactions} transactions can still be opened"
            self.findings.add(Violation.LEAKED, detail)
        if self._ledger.is_sqlite:
            self._ledger.rows("UPDATE onceward.jobs SET id = id WHERE false")  # needs the lock
        else:
            await self._expect_none(LEFT_BEHIND)

    async def _check_closed(self) -> None:
        """Check that no session outlives the store."""
        gc.collect()  # psycopg leaves a connection that was cancelled while it opened to this
        if not self._ledger.is_sqlite:
            await self._expect_none(SESSIONS)

    async def _expect_none(self, query: str) -> None:
        """Wait until a query finds nothing: the server notices the end of a session late."""

        async def is_empty() -> bool:
            return not self._ledger.rows(query)

        with suppress(ConditionTimeout):
            await eventually_async(is_empty, "nothing is left", ENDING_SECONDS)
        for (what,) in self._ledger.rows(query):
            self.findings.add(Violation.LEAKED, what)

    async def _finish_jobs(self) -> None:
        """Run every job, those of cancelled claims once their leases have expired."""

        async def is_finished() -> bool:
            await asyncio.gather(*(self._work(limit=100) for _ in range(FINISHERS)))
            return int(self._ledger.value(UNFINISHED)) == 0

        try:
            await eventually_async(is_finished, "every job has ended", FINISH_SECONDS)
        except (ConditionTimeout, OncewardError) as error:
            self.findings.add(Violation.UNFINISHED, str(error))

    def _check_ledger(self) -> None:
        stored = Counter(
            event_id for (event_id,) in self._ledger.rows("SELECT event_id FROM onceward.events")
        )
        for event_id in self._acknowledged - stored.keys():
            self.findings.add(Violation.LOST, event_id)
        for event_id, count in stored.items():
            if count > 1:
                self.findings.add(Violation.RECORDED_TWICE, event_id)
        for event_id, status, runs in self._ledger.rows(WRONG_RUNS):
            detail = f"{event_id}: the job is {status}, {runs} runs were committed"
            self.findings.add(Violation.APPLIED_TWICE, detail)
