"""After an outage the store recovers, and nothing acknowledged is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import psycopg
import pytest

from onceward.errors import ConnectionLost, StoreError, StoreUnavailable
from onceward.model.events import Outcome
from onceward.model.jobs import JobStatus, Reschedule
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.work.definition.handlers import make_handler
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.runner import JobRunner
from onceward.work.settling import settler
from onceward.work.settling.settlement import SettlementPolicy
from support.database import RawDatabase
from support.postgres import Cluster
from tests.factories import (
    EVERYTHING,
    arrival,
    arrivals,
    claim,
    lease,
    leased_job,
    make_outside_calls,
    opened,
    record,
    working,
)

TRIES = 3


async def with_retries(call: Callable[[], Awaitable[object]]) -> None:
    """Retry while the store notices, one by one, that its connections are closed."""
    for _ in range(TRIES - 1):
        try:
            await call()
        except (StoreError, psycopg.OperationalError):
            continue
        return
    await call()


async def test_every_connection_recovers_from_a_restart(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    async with opened(postgres_url) as store:
        await store.record(arrivals(4))
        leased = await lease(store, limit=4)
        done, retried, _, _ = (job.id for job in leased.jobs)

        async def write() -> None:
            async with working(store) as work:
                await work.tx.execute("SELECT 1")
                await work.unit.commit()

        await write()
        postgres_cluster.restart()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: record(store, arrival("after")),
            lambda: store.renew([leased.token], 60.0),
            write,
            lambda: store.settle_done(leased.token, done),
            lambda: store.settle_error(leased.token, retried, Reschedule(0.0, "again"), 0.1),
            lambda: claim(store, limit=1),
            store.ready,
        ]
        for call in calls:
            await asyncio.wait_for(with_retries(call), 5.0)
        assert await store.job_status(done) is JobStatus.DONE
        assert len(await store.events(EVERYTHING)) == 5


@pytest.fixture
def unflushed_claims(postgres_cluster: Cluster, postgres_url: str) -> Iterator[None]:
    """Let the server flush only for commits that wait: a claim does not."""
    postgres_cluster.start()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("SELECT pg_reload_conf()")
    yield
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM RESET wal_writer_delay")
        connection.execute("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("unflushed_claims")
@pytest.mark.parametrize("is_flushed", [True, False])
async def test_a_claim_lost_in_a_crash_is_only_a_lost_lease(
    postgres_cluster: Cluster, postgres_url: str, *, is_flushed: bool
) -> None:
    """Claims do not wait for the disk: after a crash the lease exists, or its jobs are free."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, arrival())
        leased = await lease(store)
        (job,) = (leased_job.id for leased_job in leased.jobs)
        if is_flushed:
            raw_db.rows("CREATE TABLE durable ()")  # waits for the disk, and takes the claim along
        postgres_cluster.crash()
        postgres_cluster.start()
        assert raw_db.count("onceward.leases") == is_flushed
        assert await store.settle_done(leased.token, job) is is_flushed
        if not is_flushed:
            again = await lease(store)
            assert [leased_job.id for leased_job in again.jobs] == [job]
            assert not await store.settle_done(leased.token, job), "the lost lease settles nothing"
            assert await store.settle_done(again.token, job)
        assert await store.job_status(job) is JobStatus.DONE


async def test_handlers_and_readiness_are_back_with_the_server(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    """However often they failed meanwhile: nothing backs off."""
    async with opened(postgres_url) as store:
        postgres_cluster.stop()
        try:
            for _ in range(20):
                with pytest.raises(StoreUnavailable):
                    await store.ready()
                with pytest.raises(StoreUnavailable):
                    await settle_nothing(store)
        finally:
            postgres_cluster.start()
        await asyncio.wait_for(asyncio.gather(store.ready(), settle_nothing(store)), 2.0)


async def settle_nothing(store: Store) -> None:
    async with working(store) as work:
        await work.tx.execute("SELECT 1")
        await work.unit.commit()


async def test_an_outage_is_reported_without_delay(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    async with opened(postgres_url, commit_timeout_seconds=0.3) as store:
        await record(store, arrival("before"))
        postgres_cluster.stop()
        try:
            for _ in range(2):
                for call in (record(store, arrival("during")), claim(store), store.ready()):
                    with pytest.raises(StoreError):
                        await asyncio.wait_for(call, 2.0)
        finally:
            postgres_cluster.start()
        assert await outcome(lambda: record(store, arrival("before"))) is Outcome.DUPLICATE
        assert await outcome(lambda: record(store, arrival("during"))) is Outcome.RECORDED


async def test_a_job_that_cannot_be_settled_is_not_taken_for_settled(
    postgres_cluster: Cluster,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stop_the_database() -> None:
        postgres_cluster.stop()
        raise ValueError

    monkeypatch.setattr(settler, "MAX_SETTLE_TRIES", 1)
    handler = make_handler(
        stop_the_database,
        ["invoice.paid"],
        name="credit",
    )
    async with opened(postgres_url, commit_timeout_seconds=0.3) as store:
        token, job = await leased_job(store)
        jobs = JobRunner(
            queue=store,
            handlers={"credit": handler},
            settlement_policy=SettlementPolicy(base_seconds=1, max_seconds=1, random=lambda: 0.0),
            clock=SystemClock(),
            failpoints=Failpoints(),
            abandoned_calls=AbandonedCalls({}, limit=1, clock=SystemClock()),
            outside_calls=make_outside_calls(store),
        )
        try:
            await jobs.run(token, job)
        finally:
            postgres_cluster.start()
    line = caplog.messages[-1]
    assert line.startswith(f"job {job.id} could not be settled; it runs again once the database ")
    assert "is back: " in line
    assert vars(caplog.records[-1])["error"] == line.partition("is back: ")[2] != ""


async def outcome(call: Callable[[], Awaitable[object]]) -> object:
    receipts: object = None

    async def record_receipts() -> None:
        nonlocal receipts
        receipts = await call()

    await with_retries(record_receipts)
    assert isinstance(receipts, list)
    return receipts[0].outcome


async def test_an_interrupted_batch_is_rolled_back(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, arrival("warm"))
        with raw_db.connection() as connection:
            connection.execute("LOCK onceward.payloads IN EXCLUSIVE MODE")
            recording = asyncio.create_task(store.record(arrivals(5)))
            await asyncio.sleep(0.1)
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            with pytest.raises(StoreError):
                await recording
        assert raw_db.count("onceward.events") == 1
        receipts = await store.record(arrivals(5))
    assert {receipt.outcome for receipt in receipts} == {Outcome.RECORDED}
    tables = ("onceward.events", "onceward.payloads", "onceward.jobs")
    assert [raw_db.count(table) for table in tables] == [6, 6, 6]


async def test_connections_to_a_server_that_became_a_standby_are_replaced(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    name = raw_db.value("SELECT current_database()")
    async with opened(postgres_url) as store:
        raw_db.rows(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        for _ in range(store.max_writers):
            with pytest.raises(StoreUnavailable):
                await record(store, arrival())
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        for _ in range(store.max_writers):
            await record(store, arrival())


async def test_a_job_is_not_blamed_for_a_connection_to_a_standby(postgres_url: str) -> None:
    """The handler's own read-only transaction is its own error."""
    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE notes (id integer)")
    if raw_db.value("SELECT current_setting('server_version_num')::integer") < 140_000:
        pytest.skip("PostgreSQL reports read-only sessions since version 14")
    name = raw_db.value("SELECT current_database()")
    insert = "INSERT INTO notes VALUES (1)"
    async with opened(postgres_url) as store:
        raw_db.rows(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        async with working(store) as work:
            with pytest.raises(ConnectionLost, match="The database is read-only"):
                await work.tx.execute(insert)
        async with working(store) as work:
            await work.tx.execute("SELECT 1")
            with pytest.raises(ConnectionLost, match="The database is read-only"):
                await work.unit.settle("token", 1)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        async with working(store) as work:
            await work.tx.execute("SET TRANSACTION READ ONLY")
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                await work.tx.execute(insert)
