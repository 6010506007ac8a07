"""`onceward maintain` says what goes, and what would go."""

import json
from pathlib import Path

import pytest

from support.database import RawDatabase
from tests.factories import arrival, lease, opened, record
from tests.integration.commands import APP, Finished, run
from tests.maintaining import age

pytestmark = pytest.mark.every_store


@pytest.fixture
async def folder(tmp_path: Path, database_url: str) -> Path:
    """Create a folder with an app, whose database has an old event that is over."""
    arguments = f"{database_url!r}, payload_days=10, job_days=10, effect_days=30"
    (tmp_path / "app.py").write_text(APP.format(arguments=arguments))
    async with opened(database_url) as store:
        await record(store, arrival("old"))
        leased = await lease(store)
        assert await store.settle_done(leased.token, leased.jobs[0].id)
    age(RawDatabase(database_url), 20)
    return tmp_path


def maintain(folder: Path, *options: str) -> Finished:
    done = run("maintain", "app.py", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def test_a_dry_run_changes_nothing(folder: Path, raw_db: RawDatabase) -> None:
    lines = maintain(folder, "--dry-run").stdout.splitlines()
    (drop,) = [line for line in lines if line.startswith("would drop payloads_")]
    assert ": 1 rows, from before " in drop  # on PostgreSQL it has no partition yet
    assert any(line.startswith("would purge jobs: 1 rows, from before ") for line in lines)
    assert (raw_db.count("onceward.jobs"), raw_db.count("onceward.payloads")) == (1, 1)


def test_maintenance_prints_what_it_did(folder: Path, raw_db: RawDatabase) -> None:
    out = maintain(folder).stdout
    assert "drop payloads_" in out
    assert "purge jobs: 1 rows" in out
    assert (raw_db.count("onceward.jobs"), raw_db.count("onceward.payloads")) == (0, 0)
    assert raw_db.count("onceward.events") == 1
    assert maintain(folder).stdout.endswith(": nothing to do\n")


def test_json_has_an_object_for_each_step(folder: Path) -> None:
    steps = [json.loads(line) for line in maintain(folder, "--json").stdout.splitlines()]
    purge = next(step for step in steps if step["action"] == "purge")
    assert (purge["subject"], purge["rows"], purge["dry_run"]) == ("jobs", 1, False)
    assert {step["action"] for step in steps} >= {"drop", "purge"}


def test_maintenance_of_another_process_is_no_error(
    folder: Path, raw_db: RawDatabase, database_url: str
) -> None:
    if raw_db.is_sqlite:
        pytest.skip("every process may do the maintenance of a file, one after the other")
    with raw_db.connection() as other:
        other.execute("SELECT pg_advisory_lock(7136231, 8)")
        done = maintain(folder)
        assert done.stderr == "Not done: another process does the maintenance now.\n"
    assert raw_db.count("onceward.jobs") == 1


def test_a_key_that_a_sender_can_outlast_is_refused(folder: Path) -> None:
    (folder / "app.py").write_text(APP.format(arguments="effect_days=29"))
    done = run("maintain", "app.py", cwd=folder)
    assert done.returncode == 2
    assert "effect_days is 29, but source 'stripe' can resend an event for 30 days" in done.stderr
    assert "its effects would happen again. Set effect_days to 30 or more" in done.stderr


def test_an_app_without_sources_does_not_forget_the_ids_of_others(folder: Path) -> None:
    (folder / "app.py").write_text(
        "from onceward import Inbox\ninbox = Inbox(dedupe_window_days=29)\n"
    )
    done = run("maintain", "app.py", cwd=folder)
    assert done.returncode == 2
    assert "a source of another app can resend an event for 30 days" in done.stderr


@pytest.mark.parametrize("command", [("maintain", "app.py", "--dry-run"), ("archive", "ls")])
def test_a_command_does_not_create_a_database(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(APP.format(arguments="'sqlite:///typo.db'"))
    options = () if "app.py" in command else ("--database", "sqlite:///typo.db")
    done = run(*command, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert f"There is no file {tmp_path / 'typo.db'}" in done.stderr
    assert not (tmp_path / "typo.db").exists()
