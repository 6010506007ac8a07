"""What all tests share: a fresh database for each, on either store, and a store open on it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceward.ports import Store
from support.database import RawDatabase
from support.postgres import Cluster
from tests.database_pool import DatabasePool
from tests.factories import make_store, opened

# What starts processes, and kills them, has one of the test runners for itself.
WITH_PROCESSES = ("acceptance", "crash", "integration")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share the tests between two runners: one waits most of the time, the other computes."""
    for item in items:
        folder = item.path.parent.name
        is_one = folder in WITH_PROCESSES
        item.add_marker(pytest.mark.xdist_group("processes" if is_one else "the others"))


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """One PostgreSQL server for the whole run, started when a test first asks for it."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: Cluster) -> str:
    """The address of the database that each test gets a copy of: with the schema, without rows."""
    url = postgres_cluster.create_database()
    with ThreadPoolExecutor(1) as beside_the_tests_own_loop:
        beside_the_tests_own_loop.submit(asyncio.run, _migrate(url)).result()
    return url


async def _migrate(url: str) -> None:
    store = make_store(url)
    await store.migrate()
    await store.close()


@pytest.fixture(scope="session")
def postgres_pool(postgres_cluster: Cluster, postgres_template: str) -> DatabasePool:
    """Where tests get their databases from."""
    return DatabasePool(postgres_cluster, postgres_template)


@pytest.fixture
def postgres_url(postgres_pool: DatabasePool) -> Iterator[str]:
    """The address of a PostgreSQL database that no other test sees."""
    url = postgres_pool.acquire()
    yield url
    postgres_pool.release(url)


@pytest.fixture
def bare_postgres_url(postgres_cluster: Cluster) -> Iterator[str]:
    """The address of a PostgreSQL database without anything in it."""
    postgres_cluster.start()
    url = postgres_cluster.create_database()
    yield url
    postgres_cluster.drop(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The address of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'onceward.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The address of a fresh database, once on each store."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def bare_database_url(request: pytest.FixtureRequest) -> str:
    """The address of a database without the schema, once on each store."""
    name = {"sqlite": "sqlite_url", "postgres": "bare_postgres_url"}[request.param]
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """A store, open and serving, once on each database."""
    async with opened(database_url) as it:
        yield it


@pytest.fixture
def raw_db(database_url: str) -> RawDatabase:
    """The tables of the same database, past the store."""
    return RawDatabase(database_url)
