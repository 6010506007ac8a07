"""PostgreSQL behind a real pgbouncer: session mode works, the other modes are refused by name."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg.errors import DuplicatePreparedStatement

from onceward import Inbox
from onceward.errors import OutcomeUnknown, StoreBlocked
from onceward.model.jobs import HandlerEntry
from onceward.store.postgres import connections
from onceward.store.postgres import store as postgres_store
from onceward.store.postgres.connections import conninfo
from onceward.store.postgres.session import (
    SHARED_BACKENDS,
    Session,
    SessionConnection,
    require_own_backends,
)
from onceward.store.postgres.store import PostgresStore
from onceward.work.running.effects import Effects
from onceward.work.running.transaction import Transaction
from support.database import RawDatabase
from support.pgbouncer import Pgbouncer
from support.postgres import Cluster, free_port
from support.programs import ProgramMissing, find_program
from support.proxy import Proxy
from tests.factories import (
    HANDLERS,
    SOURCES,
    arrival,
    arrivals,
    claim,
    lease,
    leased_job,
    make_store,
    opened,
    record,
    working,
)
from tests.inprocess import run_inbox

pytestmark = pytest.mark.usefixtures("_installed")


@pytest.fixture
def _installed() -> None:
    try:
        find_program("pgbouncer")
    except ProgramMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def session_url(postgres_cluster: Cluster, postgres_url: str) -> Iterator[str]:
    """Return the URL of a database behind a pooler in session mode, with its defaults."""
    with Pgbouncer(postgres_cluster, "session") as pooler:
        yield pooler.url(postgres_url)


async def test_an_inbox_receives_and_works_in_session_mode(session_url: str) -> None:
    inbox = Inbox()

    @inbox.on("a")
    async def credit(tx: Transaction, effects: Effects) -> None:
        assert await effects.once("key")
        assert await tx.fetch_value("SELECT current_setting('search_path')") == '"$user", public'

    async with run_inbox(inbox, session_url, poll_seconds=60.0) as bench:
        assert (await bench.run_event("a")).status == "done"  # announced: polling is too slow


async def test_migrating_works_in_session_mode(
    postgres_cluster: Cluster, bare_postgres_url: str
) -> None:
    with Pgbouncer(postgres_cluster, "session") as pooler:
        store = make_store(pooler.url(bare_postgres_url))
        assert await store.migrate()
        await store.close()


async def test_a_pooler_that_resets_nothing_hands_nothing_over(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    """The server connections of an earlier client have its settings and prepared statements."""
    with Pgbouncer(postgres_cluster, "session", server_reset_query="") as pooler:
        url = pooler.url(postgres_url)
        for number in range(3):
            async with opened(url) as store:
                await record(store, arrival(f"café-{number}"))
                leased = await lease(store)
                async with working(store) as work:
                    path = await work.tx.fetch_value("SHOW search_path")
                    assert path == '"$user", public'
                    await work.tx.execute("SET search_path = pg_temp")
                    assert await work.unit.settle(leased.token, leased.jobs[0].id)
            RawDatabase(url).rows("SET client_encoding = LATIN1")
    assert RawDatabase(postgres_url).count("onceward.events") == 3


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("round_robin", [0, 1])
async def test_other_modes_are_refused_at_start_by_name(
    postgres_cluster: Cluster, postgres_url: str, mode: str, *, round_robin: int
) -> None:
    with Pgbouncer(postgres_cluster, mode, server_round_robin=round_robin) as pooler:
        url = pooler.url(postgres_url)
        for _ in range(3):  # a pool with several free server connections chooses otherwise
            for serving in (True, False):
                await _refused(url, serving=serving)
    with Pgbouncer(postgres_cluster, mode, default_pool_size=1) as pooler:
        await _refused(pooler.url(postgres_url), serving=True)


async def _refused(url: str, *, serving: bool) -> None:
    store = make_store(url)
    with pytest.raises(StoreBlocked) as raised:
        await store.open(serving=serving)
    await store.close()
    assert str(raised.value) == (
        "A pooler gives each transaction another server connection (pgbouncer: pool_mode = "
        "transaction or statement). Onceward's connections keep settings, prepared statements and "
        "LISTEN. Set pool_mode = session for this database, or connect to PostgreSQL directly "
        "(docs/install.md)"
    )


async def test_migrating_in_another_mode_is_refused_by_name(
    postgres_cluster: Cluster, bare_postgres_url: str
) -> None:
    with Pgbouncer(postgres_cluster, "transaction") as pooler:
        store = make_store(pooler.url(bare_postgres_url))
        with pytest.raises(StoreBlocked, match="pool_mode = session"):
            await store.migrate()
        await store.close()
    assert RawDatabase(bare_postgres_url).value("SELECT to_regnamespace('onceward')") is None


async def test_a_pooler_shows_itself(postgres_url: str, session_url: str) -> None:
    """A direct connection is not read back after each write, which would cost a round trip."""
    for url, is_pooled in ((postgres_url, False), (session_url, True)):
        connection = await connections.connect(conninfo(url), SessionConnection, Session())
        assert connection.is_pooled is is_pooled
        await connection.close()


async def test_a_new_connection_whose_settings_were_lost_is_refused(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    with Pgbouncer(postgres_cluster, "transaction", server_round_robin=1) as pooler:
        url = pooler.url(postgres_url)
        with psycopg.connect(url) as first, psycopg.connect(url) as second:
            for connection in (first, second):  # each has a server connection until it commits
                connection.execute("SELECT 1")
        with pytest.raises(StoreBlocked, match="pool_mode = session"):
            await connections.connect(conninfo(url), SessionConnection, Session())


async def test_connections_that_establish_their_sessions_in_one_are_refused_by_name(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    """One prepares its pins after the other cleared the session, and before the other does."""
    with Pgbouncer(postgres_cluster, "transaction", default_pool_size=1) as pooler:
        info = conninfo(pooler.url(postgres_url))
        opening = [connections.connect(info, SessionConnection, Session()) for _ in range(16)]
        results = await asyncio.gather(*opening, return_exceptions=True)
        refused = [each for each in results if isinstance(each, BaseException)]
        for each in results:
            if isinstance(each, SessionConnection):
                await each.close()
    assert any(isinstance(each.__cause__, DuplicatePreparedStatement) for each in refused)
    assert {str(each) for each in refused} == {SHARED_BACKENDS}


@pytest.mark.parametrize("frozen", [0, 1])
async def test_a_start_ends_when_the_pooler_freezes_during_its_check(
    session_url: str, frozen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "RESPONSE_SECONDS", 0.3)
    with Proxy(session_url) as proxy:

        async def freeze_and_require(*pair: SessionConnection) -> None:
            proxy.freeze()
            await require_own_backends(pair[frozen], pair[1 - frozen])

        monkeypatch.setattr(postgres_store, "require_own_backends", freeze_and_require)
        store = make_store(proxy.url)
        with pytest.raises(OutcomeUnknown, match="did not respond"):
            await asyncio.wait_for(store.open(serving=False), 5)
        await store.close()


@asynccontextmanager
async def behind_one_connection(
    cluster: Cluster, url: str, handlers: Sequence[HandlerEntry] = ()
) -> AsyncIterator[PostgresStore]:
    """Open a store behind a pooler that then goes over to one server connection for all."""
    port = free_port()
    with Pgbouncer(cluster, "session", port=port) as pooler:
        store = make_store(pooler.url(url))
        assert isinstance(store, PostgresStore)
        await store.open(serving=True)
        await store.register(SOURCES, handlers, [])
    try:
        with Pgbouncer(cluster, "transaction", port=port, default_pool_size=1):
            yield store
    finally:
        await store.close()


async def test_another_mode_is_noticed_after_the_start(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    """A claim does not wait for the disk, and its settings would be those of the recording."""
    async with behind_one_connection(postgres_cluster, postgres_url) as store:
        await record(store, arrival("evt_1"))
        await claim(store, handlers=[])
        with pytest.raises(OutcomeUnknown, match="pool_mode = session"):
            await record(store, arrival("evt_2"))
        for number in range(3, 6):
            await record(store, arrival(f"evt_{number}"))  # prepared by now
        RawDatabase(store._settings.database_url).rows("DEALLOCATE ALL")
        with pytest.raises(StoreBlocked, match="pool_mode = session"):
            await record(store, arrival("evt_6"))
        await record(store, arrival("evt_7"))  # on a new connection


async def test_another_mode_is_noticed_by_a_settlement(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    async with opened(postgres_url) as direct:
        await direct.record(arrivals(2))
    async with behind_one_connection(postgres_cluster, postgres_url, HANDLERS) as store:
        leased = await lease(store)
        first, second = (job.id for job in leased.jobs)
        assert await store.settle_done(leased.token, first)
        await store.renew([leased.token], 60.0)  # leaves its settings in the session
        with pytest.raises(OutcomeUnknown, match="pool_mode = session"):
            await store.settle_done(leased.token, second)


async def prepare_on_both(store: PostgresStore) -> None:
    async with store._writers.use() as first, store._writers.use_for_ledger() as second:
        for connection in (first, second):
            for _ in range(3):
                await connection.execute("SELECT 1")


async def test_two_connections_that_prepare_in_one_session_are_noticed(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    """Their settings are the same, but a statement of one has the name of the other's."""
    async with behind_one_connection(postgres_cluster, postgres_url) as store:
        with pytest.raises(StoreBlocked, match="pool_mode = session"):
            await prepare_on_both(store)
        assert len(store._writers._idle) == 1  # the second is dropped


async def test_a_handler_does_not_go_on_with_the_settings_of_another_connection(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    shown = []
    async with behind_one_connection(postgres_cluster, postgres_url) as store:
        for step in range(3):
            async with working(store) as work:
                shown.append(await work.tx.fetch_value("SHOW synchronous_commit"))
            if step == 0:
                await claim(store, handlers=[])
    assert shown == ["on", "off", "on"]


async def test_a_pool_without_a_second_connection_is_refused_by_name(
    postgres_cluster: Cluster, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_ESTABLISH_SECONDS", 0.5)
    with Pgbouncer(postgres_cluster, "session", default_pool_size=1) as pooler:
        store = make_store(pooler.url(postgres_url))
        with pytest.raises(StoreBlocked, match="default_pool_size"):
            await store.open(serving=True)
        await store.close()


async def test_the_commit_of_a_handler_in_another_session_is_unknown(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    """The session of the claims, which share the server connection, does not wait for the disk."""
    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE public.notes (id integer)")
    async with opened(postgres_url) as direct:
        token, job = await leased_job(direct)
    async with behind_one_connection(postgres_cluster, postgres_url, HANDLERS) as store:
        async with working(store) as work:
            await work.tx.fetch_value("SELECT 1")
        await claim(store, handlers=[])
        async with working(store) as work:
            await work.tx.execute("INSERT INTO public.notes VALUES (1)")
            with pytest.raises(OutcomeUnknown, match="pool_mode = transaction"):
                await work.unit.settle(token, job.id)
