"""PostgreSQL alone: a commit that no synchronous standby confirmed is not acknowledged."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator

import pytest

from onceward.errors import OutcomeUnknown
from onceward.model.jobs import Lease
from onceward.ports import Store
from onceward.runtime.sql_text import parse
from support.database import RawDatabase
from support.postgres import Cluster
from support.processes import eventually_async
from tests.factories import ACT, BROKEN, arrival, arrivals, lease, opened, record, working

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
UNCONFIRMED = "standby was cancelled"


def set_standbys(cluster: Cluster, names: str) -> None:
    raw_db = RawDatabase(cluster.url("postgres"))
    with raw_db.connection() as connection:
        connection.autocommit = True
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture
async def leased(store: Store) -> Lease:
    """Return leased jobs. From then on, every commit waits for a standby that does not exist."""
    await record(store, *arrivals(3))
    return await lease(store)


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    async with opened(postgres_url) as opened_store:
        yield opened_store


@pytest.fixture
def without_standby(leased: Lease, postgres_cluster: Cluster) -> Iterator[None]:
    set_standbys(postgres_cluster, "missing")
    yield
    set_standbys(postgres_cluster, "")


async def cancel_wait(raw_db: RawDatabase, call: Awaitable[object]) -> None:
    """Run a call, and cancel its commit while it waits for the standby."""
    task = asyncio.ensure_future(call)

    async def is_waiting() -> bool:
        return bool(raw_db.rows(WAITING))

    await eventually_async(is_waiting, "the commit waits for the standby")
    raw_db.rows("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    await task


@pytest.fixture
def raw_db(postgres_url: str) -> RawDatabase:
    # A connection that does not wait itself.
    return RawDatabase(f"{postgres_url}?options=-c%20synchronous_commit%3Dlocal")


@pytest.mark.usefixtures("without_standby")
async def test_an_unconfirmed_commit_is_an_unknown_outcome(
    store: Store, leased: Lease, raw_db: RawDatabase
) -> None:
    first, second, third = leased.jobs

    async def handle() -> None:
        async with working(store) as work:
            await work.tx.execute("SET LOCAL client_min_messages = error")
            await work.unit.settle(leased.token, first.id)

    for call in (
        record(store, arrival("new")),
        record(store, arrival("evt_0")),
        handle(),
        store.settle_done(leased.token, second.id),
        store.settle_error(leased.token, third.id, BROKEN, 0.1),
        store.requeue(third.id, ACT),
    ):
        with pytest.raises(OutcomeUnknown, match=UNCONFIRMED):
            await cancel_wait(raw_db, call)
    statuses = raw_db.rows("SELECT status, count(*) FROM onceward.jobs GROUP BY 1 ORDER BY 1")
    assert statuses == [("done", 2), ("queued", 2)]  # they did commit on the primary


async def test_the_next_commit_on_the_connection_is_confirmed_again(
    store: Store, leased: Lease, raw_db: RawDatabase, postgres_cluster: Cluster
) -> None:
    set_standbys(postgres_cluster, "missing")
    try:
        with pytest.raises(OutcomeUnknown):
            await cancel_wait(raw_db, store.settle_done(leased.token, leased.jobs[0].id))
    finally:
        set_standbys(postgres_cluster, "")
    assert await store.settle_done(leased.token, leased.jobs[1].id)


async def test_an_unconfirmed_commit_is_not_blamed_on_the_next_use_of_the_connection(
    store: Store, leased: Lease, raw_db: RawDatabase, postgres_cluster: Cluster
) -> None:
    insert, commit = parse("INSERT INTO public.notes VALUES (1); COMMIT")
    raw_db.rows("CREATE TABLE notes (id integer)")
    set_standbys(postgres_cluster, "missing")
    try:
        async with store.begin(str) as transaction:
            await transaction.run(insert, {})
            await cancel_wait(raw_db, transaction.run(commit, {}))
    finally:
        set_standbys(postgres_cluster, "")
    assert await store.settle_done(leased.token, leased.jobs[0].id)
