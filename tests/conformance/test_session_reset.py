"""PostgreSQL alone: a handler leaves nothing in the session for the next job."""

import contextlib
from collections.abc import AsyncIterator

import psycopg
import pytest

from onceward.errors import Unwritable
from onceward.model.jobs import JobStatus
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import BROKEN, EVERYTHING, leased_job, opened, working

MEMBER = "onceward_member"
LEAKS = {
    "a setting by a function": ("SELECT use_tenant('a')", "SELECT current_setting('app.tenant')"),
    "a setting in a query": (
        "SELECT set_config('app.tenant', 'a', false)",
        "SELECT current_setting('app.tenant')",
    ),
    "a setting in a DO block": (
        "DO $$ BEGIN PERFORM use_tenant('a'); END $$",
        "SELECT current_setting('app.tenant')",
    ),
    "a setting by a trigger at the commit": (
        "INSERT INTO late VALUES (1)",
        "SELECT current_setting('app.tenant')",
    ),
    "the search path by a function": ("SELECT use_path()", "SHOW search_path"),
    "the search path": ("SET search_path = pg_temp", "SHOW search_path"),
    "the role": (f"SET ROLE {MEMBER}", "SELECT current_user::text"),
    "the role by a function": ("SELECT use_role()", "SELECT current_user::text"),
    "the session's user": (
        f"SET SESSION AUTHORIZATION {MEMBER}",
        "SELECT session_user::text",
    ),
    "the time limit": ("SET statement_timeout = '7s'", "SHOW statement_timeout"),
    "the encoding": ("SET client_encoding = LATIN1", "SHOW client_encoding"),
    "a channel": ("LISTEN something", "SELECT count(*) FROM pg_listening_channels()"),
    "a channel by a function": (
        "SELECT use_channel()",
        "SELECT count(*) FROM pg_listening_channels()",
    ),
    "an advisory lock": (
        "SELECT pg_advisory_lock(7)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7",
    ),
    "an advisory lock by a function": (
        "SELECT use_lock()",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7",
    ),
    "a temporary table by a function": (
        "SELECT use_table()",
        "SELECT to_regclass('pg_temp.scratch')::text",
    ),
    "a cursor": (
        "DECLARE kept CURSOR WITH HOLD FOR SELECT 1",
        "SELECT count(*) FROM pg_cursors WHERE name = 'kept'",
    ),
}
FUNCTIONS = {
    "use_path()": "PERFORM set_config('search_path', 'pg_temp', false)",
    "use_role()": f"PERFORM set_config('role', '{MEMBER}', false)",
    "use_channel()": "EXECUTE 'LISTEN something'",
    "use_lock()": "PERFORM pg_advisory_lock(7)",
    "use_table()": "CREATE TEMP TABLE scratch (id integer)",
    "use_tenant(tenant text)": "PERFORM set_config('app.tenant', tenant, false)",
}


@pytest.fixture
def raw_db(postgres_url: str) -> RawDatabase:
    raw_db = RawDatabase(postgres_url)
    for signature, body in FUNCTIONS.items():
        raw_db.rows(
            f"CREATE FUNCTION {signature} RETURNS void LANGUAGE plpgsql AS $$ BEGIN {body}; END $$"
        )
    raw_db.rows("CREATE TABLE late (id integer)")
    raw_db.rows(
        "CREATE FUNCTION use_tenant_late() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM use_tenant('a'); RETURN NULL; END $$"
    )
    raw_db.rows(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION use_tenant_late()"
    )
    raw_db.rows(f"DROP ROLE IF EXISTS {MEMBER}")
    raw_db.rows(f"CREATE ROLE {MEMBER} LOGIN SUPERUSER")
    name = postgres_url.rpartition("/")[2]
    raw_db.rows(f"ALTER DATABASE {name} SET app.tenant = 'nobody'")
    return raw_db


@pytest.fixture
async def store(postgres_url: str, raw_db: RawDatabase) -> AsyncIterator[Store]:
    """Open a store whose handlers share one connection, so that session state would leak."""
    async with opened(postgres_url) as opened_store:
        yield opened_store


@pytest.mark.parametrize("ends_by", ["settle", "rollback", "failed statement"])
async def test_a_job_leaves_nothing_to_the_next(store: Store, ends_by: str) -> None:
    leaks = {}
    for number, (leak, (change, question)) in enumerate(LEAKS.items()):
        token, job = await leased_job(store, f"evt_{number}")
        async with working(store) as work:
            before = await work.tx.fetch_value(question)
        async with working(store) as work:
            await work.tx.execute(change)
            if ends_by == "settle":
                assert await work.unit.settle(token, job.id)
            elif ends_by == "failed statement":
                with pytest.raises(psycopg.Error):
                    await work.tx.execute("SELECT 1 / 0")
        async with working(store) as work:
            after = await work.tx.fetch_value(question)
        if after != before:
            leaks[leak] = after
    assert leaks == {}


async def test_a_reset_returns_to_the_role_that_the_login_role_is_given(
    postgres_url: str, raw_db: RawDatabase
) -> None:
    name = postgres_url.rpartition("/")[2]
    raw_db.rows(f"ALTER ROLE postgres IN DATABASE {name} SET role = {MEMBER}")
    async with opened(postgres_url) as store:
        for _ in range(2):
            async with working(store) as work:
                assert await work.tx.fetch_value("SELECT current_user::text") == MEMBER
                await work.tx.execute("SET ROLE postgres")
                await work.unit.commit()


async def test_the_settings_are_pinned_again_after_a_job(store: Store) -> None:
    names = "client_encoding", "jit", "timezone", "client_min_messages"
    columns = ", ".join(f"current_setting('{name}') AS \"{name}\"" for name in names)
    async with working(store) as work:
        before = await work.tx.fetch_one(f"SELECT {columns}")
        for name in names:
            value = "LATIN1" if name == "client_encoding" else "on"
            value = {"timezone": "Asia/Tokyo", "client_min_messages": "error"}.get(name, value)
            await work.tx.execute(f"SET {name} = '{value}'")
        await work.unit.commit()
    async with working(store) as work:
        assert await work.tx.fetch_one(f"SELECT {columns}") == before


@pytest.mark.parametrize("fast_wait", [True, False])
async def test_a_rollback_and_a_drop_keep_the_prepared_statements(
    postgres_url: str, raw_db: RawDatabase, *, fast_wait: bool
) -> None:
    """Psycopg deallocates its statements after both."""
    pids = set()
    async with opened(postgres_url, driver_fast_wait=fast_wait) as store:
        for number in range(4):
            token, job = await leased_job(store, f"evt_{number}")
            async with working(store) as work:
                assert await work.effects(job.id).once(f"mark {number}")
                await work.tx.execute("CREATE TABLE kept (id integer)")
                for name in "abc":  # psycopg prepares a statement that it sees again
                    await work.tx.execute("INSERT INTO late VALUES (:id)", {"id": ord(name)})
                await work.tx.execute("DROP TABLE kept")
                pids.add(await work.tx.fetch_value("SELECT pg_backend_pid()"))
                if number % 2:
                    assert await work.unit.settle(token, job.id)
        assert len(await store.effects(EVERYTHING)) == 2
    assert len(pids) == 1


DEALLOCATE = "CREATE FUNCTION deallocate() RETURNS {} LANGUAGE plpgsql AS $$ BEGIN {} END $$"


async def test_a_function_that_deallocates_the_settlement_commits_nothing(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.rows(DEALLOCATE.format("void", "EXECUTE 'DEALLOCATE onceward_settle';"))
    token, job = await leased_job(store, "evt_1")
    async with working(store) as work:
        await work.tx.execute("INSERT INTO late VALUES (1)")
        assert await work.unit.settle(token, job.id)  # it prepares its statement
    token, job = await leased_job(store, "evt_2")
    async with working(store) as work:
        await work.tx.execute("INSERT INTO late VALUES (2)")
        await work.tx.execute("SELECT deallocate()")
        with pytest.raises(Unwritable, match="lacks the statements that Onceward prepared"):
            await work.unit.settle(token, job.id)
    assert raw_db.count("late") == 1
    assert await store.settle_error(token, job.id, BROKEN, 0.1)


@pytest.mark.parametrize("fast_wait", [True, False])
async def test_an_error_of_the_reset_does_not_hide_the_commit(
    postgres_url: str, raw_db: RawDatabase, *, fast_wait: bool
) -> None:
    """A trigger at the commit deallocates the statement that pins the settings."""
    raw_db.rows(DEALLOCATE.format("trigger", "EXECUTE 'DEALLOCATE ALL'; RETURN NULL;"))
    raw_db.rows(
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION deallocate()"
    )
    async with opened(postgres_url, driver_fast_wait=fast_wait) as store:
        for number in range(3):
            token, job = await leased_job(store, f"evt_{number}")
            async with working(store) as work:
                await work.tx.execute("INSERT INTO late VALUES (1)")
                assert await work.unit.settle(token, job.id)
            assert await store.job_status(job.id) is JobStatus.DONE
    assert raw_db.count("late") == 3


@pytest.mark.parametrize("fast_wait", [True, False])
async def test_a_table_that_others_alter_fails_a_connection_once(
    postgres_url: str, raw_db: RawDatabase, *, fast_wait: bool
) -> None:
    """The plan of a statement cannot return other columns. A rollback forgets it."""
    failures = 0
    async with opened(postgres_url, driver_fast_wait=fast_wait) as store:
        for number in range(8):
            if number == 4:
                raw_db.rows("ALTER TABLE late ADD COLUMN note text")
            with contextlib.suppress(psycopg.NotSupportedError):
                failures += 1
                async with working(store) as work:
                    await work.tx.fetch("SELECT * FROM late WHERE id = :id", {"id": 1})
                    await work.unit.commit()
                failures -= 1
    assert failures <= 1


@pytest.mark.parametrize("encoding", ["LATIN1", "SJIS", "UTF8"])
async def test_an_effect_has_one_key_in_every_encoding(
    store: Store, raw_db: RawDatabase, encoding: str
) -> None:
    keys = {"LATIN1": "mark é", "SJIS": "mark 表"}
    key = keys.get(encoding, "mark 表 é")
    for number in range(3):
        token, job = await leased_job(store, f"evt_{number}")
        async with working(store) as work:
            if number != 1:
                await work.tx.execute(f"SET client_encoding = {encoding}")
            assert await work.effects(job.id).once(key) is (number == 0)
            assert await work.unit.settle(token, job.id)
    assert raw_db.rows("SELECT idempotency_key FROM onceward.effects") == [(key,)]


async def test_the_next_job_has_the_same_connection(store: Store) -> None:
    pids = set()
    for _ in range(3):
        async with working(store) as work:
            await work.tx.execute("SET jit = on")
            pids.add(await work.tx.fetch_value("SELECT pg_backend_pid()"))
            await work.unit.commit()
    assert len(pids) == 1
