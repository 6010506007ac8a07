"""PostgreSQL alone: the privileges that a role needs, as docs/install.md states them."""

from collections.abc import Iterator

import psycopg
import pytest

from onceward.errors import StoreError
from support.database import RawDatabase
from tests.factories import arrival, lease, make_store, opened, record

ROLE = "onceward_app"
RUNTIME_GRANTS = f"""
    GRANT USAGE ON SCHEMA onceward TO {ROLE};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA onceward TO {ROLE};
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA onceward TO {ROLE};
"""


@pytest.fixture
def role_url(bare_postgres_url: str) -> Iterator[str]:
    """Return the URL of an empty database for a role that may only connect."""
    run(bare_postgres_url, f"DROP ROLE IF EXISTS {ROLE}; CREATE ROLE {ROLE} LOGIN")
    yield bare_postgres_url.replace("postgres@", f"{ROLE}@")
    run(bare_postgres_url, f"DROP OWNED BY {ROLE} CASCADE; DROP ROLE {ROLE}")


def run(url: str, script: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())


def database(url: str) -> str:
    return url.rpartition("/")[2]


async def receives_and_works(url: str) -> bool:
    async with opened(url) as store:
        await record(store, arrival())
        leased = await lease(store)
        await store.maintenance()
        return await store.settle_done(leased.token, leased.jobs[0].id)


async def test_a_role_that_may_only_connect_is_refused(role_url: str) -> None:
    store = make_store(role_url)
    with pytest.raises(StoreError, match="permission denied for database"):
        await store.open(serving=True)
    await store.close()


async def test_create_on_the_database_is_enough(bare_postgres_url: str, role_url: str) -> None:
    run(bare_postgres_url, f"GRANT CREATE ON DATABASE {database(role_url)} TO {ROLE}")
    assert await receives_and_works(role_url)


async def test_the_owner_of_the_schema_needs_nothing_else(
    bare_postgres_url: str, role_url: str
) -> None:
    run(bare_postgres_url, f"CREATE SCHEMA onceward AUTHORIZATION {ROLE}")
    assert await receives_and_works(role_url)
    run(role_url, "DELETE FROM onceward.jobs; DELETE FROM onceward.events")
    assert await receives_and_works(role_url)  # nothing is left to migrate


async def test_a_role_with_grants_on_the_tables_can_receive_and_work(
    bare_postgres_url: str, role_url: str
) -> None:
    owner = make_store(bare_postgres_url)
    await owner.migrate()
    await owner.close()
    run(bare_postgres_url, RUNTIME_GRANTS)
    assert await receives_and_works(role_url)
    assert RawDatabase(role_url).count("onceward.migrations") > 0
