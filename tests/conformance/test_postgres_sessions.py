"""PostgreSQL alone: settings of the role or the database that a session inherits."""

import psycopg
import pytest

from onceward.errors import OutcomeUnknown, StoreBlocked, StoreError
from onceward.runtime.sql_text import parse
from onceward.store.postgres.connections import STATEMENT_TIMEOUT, translate_error
from onceward.store.postgres.store import PostgresStore
from support.database import RawDatabase
from tests.factories import arrival, claim, make_store, opened, record


def set_for_database(url: str, setting: str) -> None:
    name = url.rpartition("/")[2]
    RawDatabase(url).rows(f"ALTER DATABASE {name} SET {setting}")


async def test_the_statement_timeout_of_a_role_applies_to_handlers_alone(
    bare_postgres_url: str,
) -> None:
    set_for_database(bare_postgres_url, "statement_timeout = '300ms'")
    async with opened(bare_postgres_url) as store:
        assert isinstance(store, PostgresStore)
        for pool, limit in ((store._admin, "0"), (store._claiming, "10s"), (store._writers, "10s")):
            async with pool.use() as connection:
                cursor = await connection.execute("SHOW statement_timeout")
                assert await cursor.fetchall() == [{"statement_timeout": limit}]
        async with store.begin(str) as transaction:
            with pytest.raises(psycopg.errors.QueryCanceled) as raised:
                await transaction.run(parse("SELECT pg_sleep(5)")[0], {})
    assert raised.value.__notes__ == [STATEMENT_TIMEOUT]
    error = translate_error(raised.value, is_sent=False)
    assert type(error) is StoreBlocked
    assert str(error) == (
        "canceling statement due to statement timeout. statement_timeout of the role or database "
        "is too short for this statement: ALTER ROLE … RESET statement_timeout"
    )
    assert type(translate_error(raised.value)) is OutcomeUnknown


@pytest.mark.parametrize("is_migrated", [True, False])
async def test_a_read_only_database_is_refused_at_start(
    bare_postgres_url: str, *, is_migrated: bool
) -> None:
    store = make_store(bare_postgres_url)
    if is_migrated:
        await store.migrate()
    await store.close()
    set_for_database(bare_postgres_url, "default_transaction_read_only = on")
    with pytest.raises(StoreBlocked) as raised:
        async with opened(bare_postgres_url) as opened_store:
            await record(opened_store, arrival())
    assert str(raised.value).endswith(
        "The database is read-only: a standby, or default_transaction_read_only is set for the "
        "role or database"
    )


async def test_claims_work_again_after_their_statements_could_not_be_prepared(
    postgres_url: str,
) -> None:
    """PREPARE is not undone by an error: a repetition would find some names in use."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, arrival())
        raw_db.rows("ALTER TABLE onceward.jobs RENAME TO hidden")
        with pytest.raises(StoreError):
            await claim(store)
        raw_db.rows("ALTER TABLE onceward.hidden RENAME TO jobs")
        assert (await claim(store)).lease is not None
