"""Fixtures for all tests: a fresh database on either store, and an open store on it."""

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceward.ports import Store
from support.database import RawDatabase
from support.memory import TEMPORARY, memory_folder
from support.postgres import Cluster, free_port
from support.redis import IN_MEMORY, RedisServer
from support.signals import give_children_default_signals
from tests.database_pool import DatabasePool
from tests.factories import make_store, opened

# Test runners take the files in this order: the last ones are short, so that all end together.
FOLDERS = (
    *("crash", "acceptance", "integration", "property", "conformance", "tests", "unit"),
    "nightly",
)
ABOVE_THE_STORES = ("acceptance", "integration")
"""Folders whose tests run on SQLite: the conformance suite holds what both stores promise."""
QUIET = {"autovacuum": "off"}
"""Nothing in the background takes time from the tests, or gives tables statistics."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of a nightly run."""
    parser.addoption(
        "--every-store",
        action="store_true",
        help="Run the tests of tests/integration and tests/acceptance on each store.",
    )


def pytest_configure() -> None:
    """Give child processes default signal handling, and keep files in memory if possible."""
    give_children_default_signals()
    if (folder := memory_folder()) != TEMPORARY:  # no test waits for the disk's commits
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests above the stores on SQLite; on each store if marked, or with `--every-store`."""
    definition = metafunc.definition
    if (
        "database_url" in metafunc.fixturenames
        and definition.path.parent.name in ABOVE_THE_STORES
        and not metafunc.config.getoption("every_store")
        and not definition.get_closest_marker("every_store")
        and not definition.get_closest_marker("every_transport")
    ):
        definition.add_marker(pytest.mark.parametrize("database_url", ["sqlite"], indirect=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the folders whose tests take longest."""
    places = {name: place for place, name in enumerate(FOLDERS)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking thousands of collected tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Free the objects: libraries in C report those that outlive the interpreter as leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """Start one PostgreSQL server for the whole run, when a test first needs it."""
    with Cluster(memory_folder(), settings=QUIET) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: Cluster) -> str:
    """Return the URL of a database with the schema and without rows, to make copies of."""
    url = postgres_cluster.create_database()
    _migrate(url)
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database file with the schema and without rows, to make copies of."""
    path = tmp_path_factory.mktemp("template") / "onceward.db"
    _migrate(f"sqlite:///{path}")
    return path


def _migrate(url: str) -> None:
    async def migrate() -> None:
        store = make_store(url)
        await store.migrate()
        await store.close()

    with ThreadPoolExecutor(1) as pool:  # the test may run an event loop in this thread
        pool.submit(asyncio.run, migrate()).result()


@pytest.fixture(scope="session")
def postgres_pool(postgres_cluster: Cluster, postgres_template: str) -> DatabasePool:
    """Return the pool that databases for tests come from."""
    return DatabasePool(postgres_cluster, postgres_template)


@pytest.fixture
def postgres_url(postgres_pool: DatabasePool) -> Iterator[str]:
    """Return the URL of a PostgreSQL database that no other test uses."""
    url = postgres_pool.acquire()
    yield url
    postgres_pool.release(url)


@pytest.fixture
def bare_postgres_url(postgres_cluster: Cluster) -> Iterator[str]:
    """Return the URL of an empty PostgreSQL database, without the schema."""
    postgres_cluster.start()
    url = postgres_cluster.create_database()
    yield url
    postgres_cluster.drop(url)


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """Start an empty Redis server that no other test uses."""
    with RedisServer(free_port(), *IN_MEMORY) as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'onceward.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a fresh database with the schema, once for each store."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    if request.param == "sqlite":
        template = request.getfixturevalue("sqlite_template")
        shutil.copyfile(template, url.removeprefix("sqlite:///"))
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def bare_database_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database without the schema, once for each store."""
    name = {"sqlite": "sqlite_url", "postgres": "bare_postgres_url"}[request.param]
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """Open a store for serving, once for each database."""
    async with opened(database_url) as store:
        yield store


@pytest.fixture
def raw_db(database_url: str) -> RawDatabase:
    """Return direct access to the tables of `database_url`."""
    return RawDatabase(database_url)
