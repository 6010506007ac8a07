"""Transactions on PostgreSQL exclude each other where they must, and nowhere else."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import psycopg
import pytest

from onceward.errors import NotInState, RejectionCause, StoreBlocked
from onceward.model.admin import Pausable, Rejection
from onceward.model.events import Outcome
from onceward.model.retention import Purgeable
from onceward.ports import Store
from onceward.runtime.sql_text import parse
from onceward.store.locks import Lock
from onceward.store.postgres import lock_timeout, time_limit
from onceward.store.postgres import maintenance as postgres_maintenance
from onceward.store.postgres import store as postgres_store
from onceward.store.postgres.connections import lock_statement
from onceward.store.postgres.store import PostgresStore
from support.database import RawDatabase
from support.processes import eventually_async
from tests.archiving import WEEK
from tests.factories import (
    ACT,
    HANDLERS,
    SOURCES,
    arrival,
    claim,
    failed_job,
    make_store,
    opened,
    record,
)


async def prepare(store: Store) -> None:
    async with store.prepare():
        pass


async def migrate(store: Store) -> None:
    await store.migrate()


Operation = Callable[[Store], Awaitable[object]]

OPERATIONS: Final[dict[str, tuple[Lock, Operation]]] = {
    "claim": (Lock.CLAIMS, claim),
    "make_partitions": (Lock.PARTITIONS, lambda store: store.make_partitions()),
    "prepare": (Lock.SETUP, prepare),
    "register": (Lock.REGISTRY, lambda store: store.register(SOURCES, HANDLERS, [])),
    "add_first_token": (Lock.REGISTRY, lambda store: store.add_first_token("first", b"sha256")),
    "store_secret": (Lock.REGISTRY, lambda store: store.store_secret("stripe", b"secret")),
    "delete_secrets": (Lock.REGISTRY, lambda store: store.delete_secrets("stripe")),
    "add_rejections": (
        Lock.REJECTIONS,
        lambda store: store.add_rejections(
            [Rejection("stripe", RejectionCause.MISMATCH, "hmac", 1.0, 1.0)], keep=9
        ),
    ),
    "requeue": (Lock.LEDGER, lambda store: store.requeue(1, ACT)),
    "cancel": (Lock.CLAIMS, lambda store: store.cancel(1, ACT)),
    "pause_handler": (Lock.LEDGER, lambda store: store.pause(Pausable.HANDLER, "x", ACT)),
    "resume_handler": (Lock.LEDGER, lambda store: store.resume(Pausable.HANDLER, "x", ACT)),
    "pause_source": (Lock.LEDGER, lambda store: store.pause(Pausable.SOURCE, "x", ACT)),
    "resume_source": (Lock.CLAIMS, lambda store: store.resume(Pausable.SOURCE, "x", ACT)),
    "receive_rejection": (
        Lock.LEDGER,
        lambda store: store.receive_rejection(1, [arrival()], ACT),
    ),
    "accept_conflict": (Lock.LEDGER, lambda store: store.accept_conflict(1, arrival(), ACT)),
    "purge": (
        Lock.LEDGER,
        lambda store: store.purge(Purgeable.EVENTS, 0, limit=9, before=datetime.now(UTC)),
    ),
    "purge_rejections": (
        Lock.REJECTIONS,
        lambda store: store.purge(Purgeable.REJECTIONS, 0, limit=9, before=datetime.now(UTC)),
    ),
    "restore_events": (Lock.LEDGER, lambda store: store.restore_events(WEEK, [], None)),
    "set_archive_verified": (Lock.LEDGER, lambda store: store.set_archive_verified(1)),
}


@contextmanager
def holding(url: str, locks: Iterable[Lock]) -> Iterator[None]:
    """Hold locks in a transaction of another process."""
    with psycopg.connect(url, options="-c lock_timeout=5s") as connection:
        for lock in locks:
            connection.execute(lock_statement(lock).encode())
        yield


async def is_blocked(store: Store, operation: Operation, url: str) -> bool:
    """Start an operation and return whether it waits for a lock. Cancel it if it does."""

    async def call() -> object:
        return await operation(store)

    async def is_anybody_waiting() -> bool:
        return bool(RawDatabase(url).value(waiting))

    async def is_nobody_waiting() -> bool:
        return not await is_anybody_waiting()

    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await eventually_async(is_nobody_waiting, "the server has noticed an earlier cancellation")
    task = asyncio.create_task(call())
    async with asyncio.timeout(10):
        while not task.done():
            await asyncio.sleep(0.02)
            if await is_anybody_waiting():
                task.cancel()
                await asyncio.wait([task])
                return True
    with suppress(NotInState):  # some rows that the operations name do not exist
        await task
    return False


async def test_an_operation_waits_for_the_lock_of_its_purpose(
    postgres_url: str, subtests: pytest.Subtests
) -> None:
    async with opened(postgres_url) as store:
        for name, (lock, operation) in OPERATIONS.items():
            with subtests.test(name):
                with holding(postgres_url, [lock]):
                    assert await is_blocked(store, operation, postgres_url)
                assert not await is_blocked(store, operation, postgres_url)


async def test_an_operation_does_not_wait_for_other_purposes(
    postgres_url: str, subtests: pytest.Subtests
) -> None:
    async with opened(postgres_url) as store:
        for name, (lock, operation) in OPERATIONS.items():
            with subtests.test(name), holding(postgres_url, set(Lock) - {lock, Lock.MIGRATIONS}):
                assert not await is_blocked(store, operation, postgres_url)


async def test_a_migration_excludes_everything_but_claims(
    postgres_url: str, subtests: pytest.Subtests
) -> None:
    async with opened(postgres_url) as store:
        for name, (_, operation) in OPERATIONS.items():
            with subtests.test(name), holding(postgres_url, [Lock.MIGRATIONS]):
                assert await is_blocked(store, operation, postgres_url) == (name != "claim")


async def test_a_migration_waits_for_all_but_claims(bare_postgres_url: str) -> None:
    store = make_store(bare_postgres_url)
    for lock in set(Lock) - {Lock.CLAIMS}:
        with holding(bare_postgres_url, [lock]):
            assert await is_blocked(store, migrate, bare_postgres_url)
    with holding(bare_postgres_url, [Lock.CLAIMS]):
        assert not await is_blocked(store, migrate, bare_postgres_url)
    await store.close()


async def test_a_process_starts_while_another_runs_its_at_start_functions(
    postgres_url: str,
) -> None:
    with holding(postgres_url, [Lock.SETUP]):
        async with opened(postgres_url) as store:
            assert await asyncio.wait_for(store.requeue(1, ACT), 5) is None


async def test_an_operation_does_not_wait_for_ever(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(lock_timeout, "LOCK_TIMEOUT_SECONDS", 0.1)
    async with opened(postgres_url) as store:
        for name in ("register", "store_secret", "add_rejections", "requeue", "cancel"):
            lock, operation = OPERATIONS[name]
            with subtests.test(name):
                with (
                    holding(postgres_url, [lock]),
                    pytest.raises(StoreBlocked, match=r"held the lock for .* for 0\.1 seconds"),
                ):
                    await operation(store)
                await operation(store)


async def test_an_at_start_function_does_not_wait_for_ever(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = "; ".join(statement.text for statement in postgres_store._LOCK_SETUP)
    limited = statements.replace(f"'{lock_timeout.SETUP_TIMEOUT_SECONDS}s'", "'0.1s'")
    monkeypatch.setattr(postgres_store, "_LOCK_SETUP", parse(limited))
    async with opened(postgres_url) as store:
        with (
            holding(postgres_url, [Lock.SETUP]),
            pytest.raises(StoreBlocked, match="the lock for the at_start functions of the app"),
        ):
            await asyncio.wait_for(prepare(store), 5)
        await prepare(store)


async def test_the_timeout_of_a_lock_does_not_apply_to_the_statements_after_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_timeout, "LOCK_TIMEOUT_SECONDS", 0.1)
    async with opened(postgres_url) as store:
        job = await failed_job(store)
        with RawDatabase(postgres_url).connection() as connection:
            connection.execute("SELECT 1 FROM onceward.jobs FOR UPDATE")
            requeue = asyncio.create_task(store.requeue(job.id, ACT))
            await asyncio.sleep(0.5)
            assert not requeue.done()
        assert await asyncio.wait_for(requeue, 5) is not None


async def test_at_start_functions_have_the_lock_timeout_of_the_role(postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    RawDatabase(postgres_url).rows(f"ALTER DATABASE {name} SET lock_timeout = '7s'")
    async with opened(postgres_url) as store, store.prepare() as transaction:
        shown = await transaction.run(parse("SHOW lock_timeout")[0], {})
    assert shown.rows == [{"lock_timeout": "7s"}]


async def test_maintenance_does_not_wait_for_ever(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_maintenance, "LOCK_TRIES", 1)
    async with opened(postgres_url) as store:
        with (
            holding(postgres_url, [Lock.PARTITIONS]),
            pytest.raises(StoreBlocked, match="another transaction"),
        ):
            await asyncio.wait_for(store.make_partitions(), 10)
        await store.make_partitions()


async def test_a_lost_registration_is_restored_under_its_lock(postgres_url: str) -> None:
    """Receivers that restore the same rows in different orders would deadlock."""
    async with opened(postgres_url) as store:
        RawDatabase(postgres_url).rows("DELETE FROM onceward.routes")
        with holding(postgres_url, [Lock.REGISTRY]):
            assert await is_blocked(store, lambda store: record(store, arrival()), postgres_url)


async def test_recording_takes_no_lock(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        with holding(postgres_url, [*set(Lock) - {Lock.MIGRATIONS}]):
            (receipt,) = await asyncio.wait_for(record(store, arrival()), 5)
    assert receipt.outcome is Outcome.RECORDED


async def test_every_statement_of_its_own_has_a_timeout_for_locks(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        assert isinstance(store, PostgresStore)
        for pool in (store._writers, store._claiming, store._renewals, store._notifications):
            async with pool.use() as connection:
                cursor = await connection.execute("SHOW lock_timeout")
                assert await cursor.fetchall() == [{"lock_timeout": "8s"}]


@pytest.mark.parametrize("operation", [claim, lambda store: record(store, arrival("evt_2"))])
async def test_a_lock_on_the_tables_is_named_as_the_cause(
    operation: Operation, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(time_limit.OWN_LIMITS, "lock_timeout", "100ms")
    async with opened(postgres_url) as store:
        await operation(store)
        with RawDatabase(postgres_url).connection() as connection:
            connection.execute("LOCK onceward.jobs, onceward.events")
            with pytest.raises(StoreBlocked, match="holds a lock on Onceward's tables"):
                await operation(store)
        await operation(store)
