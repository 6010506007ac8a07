"""The command line: what it starts, what it refuses, and how it says why."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import psycopg
import pytest

from support.database import RawDatabase
from support.processes import COMMAND, eventually
from tests.integration.commands import environment, post, run, serve, started

APP = """
from onceward import Inbox

inbox = Inbox({arguments})
inbox.source("stripe", secrets=["whsec_the_secret_of_stripe"])

@inbox.on("order.paid")
async def credit(event):
    pass
"""
SECRET = "whsec_the_secret_of_stripe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an app in it."""
    (tmp_path / "app.py").write_text(APP.format(arguments=""))
    return tmp_path


def refused(*arguments: object, cwd: Path, **env: str) -> str:
    """Run a command that must be refused: a message, exit code 2, no traceback."""
    done = run(*arguments, cwd=cwd, **env)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines
    assert all(line.startswith("onceward: ") for line in lines)
    return done.stderr


# What it says about itself.


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["serve", "work", "migrate"]),
        (["serve"], ["--dev", "--port", "--host", "--database", "--json", "--workers", "3000"]),
        (["work"], ["--database", "--json", "--workers", "--allow-weak-durability"]),
        (["migrate"], ["--database", "--json"]),
    ],
)
def test_help_names_every_option(command: list[str], words: list[str], tmp_path: Path) -> None:
    done = run(*command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for word in words:
        assert word in done.stdout


def test_the_first_line_tells_programs_what_runs(folder: Path) -> None:
    with started(*serve("app.py", "--dev"), cwd=folder) as running:
        facts = running.facts
        port = int(facts["address"].rpartition(":")[2])
        assert facts["address"] == f"http://127.0.0.1:{port}"
        assert facts["database"] == "sqlite:///onceward.db"
        assert facts["dev"] is True
        assert facts["workers"] == 4
        assert facts["sources"] == {"stripe": "stripe"}
        assert facts["handlers"] == {"credit": ["order.paid"]}
        assert "admin_token" not in facts
        assert post(facts["address"], "evt_1").status_code == 202
        assert (folder / "onceward.db").exists()


def test_a_person_is_shown_where_to_post_and_no_secret(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [COMMAND, "serve", "app.py", "--port", str(port)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        address = f"http://127.0.0.1:{port}"
        eventually(lambda: answers(address), "it answers")
        process.terminate()
        shown = process.communicate(timeout=20)[0]
        assert process.returncode == 0
    assert f"{address}/events/ingest" in shown
    assert f"{address}/webhooks/stripe" in shown
    assert "credit ← order.paid" in shown
    assert "Admin token" in shown
    assert SECRET not in shown
    assert "Traceback" not in shown


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz").is_success
    except httpx.TransportError:
        return False


# The app.


@pytest.mark.parametrize("app", ["app.py", "app.py:inbox", "./app.py", "app:inbox", "app"])
def test_an_app_is_named_by_file_or_module(folder: Path, app: str) -> None:
    (folder / "app.py").write_text(APP.format(arguments="'sqlite:///of-the-app.db'"))
    assert run("migrate", app, cwd=folder).stdout == ("sqlite:///of-the-app.db: 0001 schema\n")


def test_an_app_may_lie_in_a_package_or_elsewhere(folder: Path, tmp_path: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "hooks.py").write_text(
        "from shop.parts import NAME\n" + APP.format(arguments="")
    )
    (folder / "shop" / "parts.py").write_text("NAME = 'x'")
    assert run("migrate", "shop.hooks:inbox", cwd=folder).returncode == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "beside.py").write_text("NAME = 'y'")
    (folder / "other.py").write_text("from beside import NAME\n" + APP.format(arguments=""))
    assert run("migrate", folder / "other.py", cwd=elsewhere).returncode == 0
    assert (elsewhere / "onceward.db").exists()


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("nothing.py", "There is no file nothing.py."),
        ("nothing", "There is no module 'nothing'."),
        ("nothing.at.all:inbox", "There is no module 'nothing.at.all'."),
        ("", "There is no module ''."),
        ("..app", "There is no module '..app'."),
        ("app.py:other", "app.py has no Inbox called 'other'."),
        ("app.py:Inbox", "app.py has no Inbox called 'Inbox'."),
        ("empty.py", "empty.py must have one Inbox; it has none."),
        ("two.py", "two.py must have one Inbox; it has first, second. Name one: two.py:"),
        (".", "There is no module '.'."),
    ],
)
def test_an_app_that_is_not_there_is_refused(folder: Path, app: str, message: str) -> None:
    (folder / "empty.py").write_text("")
    (folder / "two.py").write_text(
        "from onceward import Inbox\nfirst, second = Inbox('sqlite:///1.db'), Inbox('sqlite:///2.db')"
    )
    for command in ("serve", "work"):
        assert message in refused(command, app, cwd=folder)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("inbox = Inbox(\n", "SyntaxError"),
        ("import a_module_that_is_not_there\n", "No module named 'a_module_that_is_not_there'"),
        ("1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_a_fault_in_the_app_is_shown_where_it_is(folder: Path, text: str, error: str) -> None:
    (folder / "broken.py").write_text(text)
    for app in ("broken.py", "broken:inbox"):
        done = run("serve", app, cwd=folder)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "broken.py" in done.stderr
        assert error in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("inbox.source('github', secrets=['short-1'])", "source 'github': secret 1 is 7 bytes"),
        ("inbox.source('github', secrets=[''])", "source 'github': secret 1 is empty"),
        ("inbox.source('github')", "source 'github': it has no secrets"),
        ("inbox.source('stripe', unsigned=True)", "source 'stripe': there is one of this name"),
        ("inbox.on('x', source='nobody')(credit)", "the name is already in use"),
        ("inbox.on('x', source='nobody', name='n')(credit)", "there is no source 'nobody'"),
    ],
)
def test_a_faulty_source_or_handler_is_named(folder: Path, line: str, message: str) -> None:
    (folder / "app.py").write_text(APP.format(arguments="") + line)
    said = refused("serve", "app.py", cwd=folder)
    assert message in said
    assert "short-1" not in said
    assert not (folder / "onceward.db").exists()


# The database.


def test_the_command_line_wins_over_code_and_code_over_the_environment(folder: Path) -> None:
    (folder / "named.py").write_text(APP.format(arguments="'sqlite:///code.db'"))
    env = {"ONCEWARD_DATABASE_URL": "sqlite:///environment.db"}
    for app, options, expected in (
        ("named.py", ("--database", "sqlite:///line.db"), "line.db"),
        ("named.py", (), "code.db"),
        ("app.py", (), "environment.db"),
    ):
        done = run("migrate", app, *options, "--json", cwd=folder, **env)
        assert json.loads(done.stdout)["database"] == f"sqlite:///{expected}"
        (database,) = folder.glob("*.db")
        assert database.name == expected
        for file in folder.glob("*.db*"):
            file.unlink()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://ann:{password}@db/app", "database_url begins with 'mysql://'"),
        ("ann:{password}@db/app", "database_url has no scheme"),
        ("sqlite://", "database_url begins with 'sqlite://'"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///x.db?mode=ro", "'mode=ro' is not an option"),
        ("sqlite:////nowhere/at/all/x.db", "/nowhere/at/all/x.db.lock cannot be written"),
        ("postgresql://ann:{password}@[::1", "is not an address that PostgreSQL can read"),
        ("postgresql://ann:{password}%zz@db/app", "is not an address that PostgreSQL can read"),
        ("postgresql://ann:{password}@x@db/app", "is not an address that PostgreSQL can read"),
        ("postgresql://ann:{password}/x@db/app", "is not an address that PostgreSQL can read"),
        ("postgresql://ann:{password}@db/app?x=1", "is not an address that PostgreSQL can read"),
        ("postgresql://ann:{password}@127.0.0.1:1/app", "Connection refused"),
        ("postgresql://127.0.0.1:1/app?password={password}", "Connection refused"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_without_its_password(
    folder: Path, url: str, message: str
) -> None:
    address = url.format(password="hunter2")
    said = refused("serve", "app.py", "--port", "0", "--database", address, cwd=folder)
    assert message in said
    assert "hunter2" not in said


def test_a_wrong_password_is_said_and_not_shown(folder: Path, bare_postgres_url: str) -> None:
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_in_particular")
    url = bare_postgres_url.replace("postgres@", "nobody_in_particular:hunter2@")
    said = refused("serve", "app.py", "--port", "0", "--database", url, cwd=folder)
    assert "nobody_in_particular" in said
    assert "hunter2" not in said


def test_the_password_is_not_in_the_start_line(folder: Path, postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", "postgres:hunter2@")
    also = f"{postgres_url}?password=hunter2"
    for address in (url, also):
        with started(*serve("app.py", "--database", address), cwd=folder) as running:
            assert "hunter2" not in json.dumps(running.facts)
            assert running.facts["database"].startswith("postgresql://postgres")


def test_a_second_process_on_one_sqlite_file_is_refused_with_the_reason(folder: Path) -> None:
    with started(*serve("app.py", "--dev"), cwd=folder) as running:
        for command in (serve("app.py"), ("work", "app.py")):
            said = refused(*command, cwd=folder)
            assert "Another process serves onceward.db" in said
            assert "PostgreSQL" in said
        assert run("migrate", "app.py", cwd=folder).stdout == "sqlite:///onceward.db: up to date\n"
        assert post(running.address, "evt_1").status_code == 202
    with started(*serve("app.py", "--dev"), cwd=folder) as running:
        assert post(running.address, "evt_1").json()["duplicate"] is True


def test_on_postgresql_processes_share_the_work(folder: Path, postgres_url: str) -> None:
    database = ("--database", postgres_url)
    with (
        started(*serve("app.py", "--dev", "--workers", 0, *database), cwd=folder) as one,
        started(*serve("app.py", "--dev", "--workers", 0, *database), cwd=folder) as two,
    ):
        assert one.facts["workers"] == 0
        assert post(one.address, "evt_1").json()["duplicate"] is False
        assert post(two.address, "evt_1").json()["duplicate"] is True
        jobs = httpx.get(f"{one.address}/admin/jobs").json()["items"]
        assert [job["status"] for job in jobs] == ["queued"]
        with started("work", "app.py", *database, cwd=folder) as worker:
            assert worker.facts["address"] is None
            done = "/admin/jobs?status=done"
            eventually(lambda: httpx.get(two.address + done).json()["items"], "the job is done")
            assert worker.end() == 0


def test_work_without_anything_to_do_is_refused(folder: Path) -> None:
    assert "gives nothing to do" in refused("work", "app.py", "--workers", 0, cwd=folder)
    (folder / "idle.py").write_text("from onceward import Inbox\ninbox = Inbox()")
    assert "gives nothing to do" in refused("work", "idle.py", cwd=folder)


def test_migrate_brings_a_database_up_to_date_once(folder: Path, bare_database_url: str) -> None:
    command = ("migrate", "--database", bare_database_url, "--json")
    first, second = (json.loads(run(*command, cwd=folder).stdout) for _ in range(2))
    assert first["applied"][0] == "0001 schema"
    assert second["applied"] == []
    assert RawDatabase(bare_database_url).count("onceward.events") == 0


def test_a_schema_that_is_behind_is_refused_where_nobody_may_migrate(
    folder: Path, bare_database_url: str
) -> None:
    command = ("serve", "app.py", "--database", bare_database_url)
    said = refused(*command, cwd=folder, ONCEWARD_MIGRATE_AT_START="false")
    assert "lacks migrations (0001 schema" in said
    assert "Run: onceward migrate" in said


def test_weak_durability_is_refused_by_name(folder: Path) -> None:
    for weak in ("normal", "off"):
        url = f"sqlite:///weak.db?synchronous={weak}"
        said = refused("serve", "app.py", "--port", "0", "--database", url, cwd=folder)
        assert "SQLite runs with synchronous = " in said
        assert "--allow-weak-durability" in said
        with started(
            *serve("app.py", "--database", url, "--allow-weak-durability"), cwd=folder
        ) as running:
            assert answers(running.address)


@pytest.mark.parametrize("command", ["serve", "work"])
def test_weak_durability_of_postgresql_is_refused_by_name(
    folder: Path, postgres_url: str, command: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "DO $$ BEGIN EXECUTE format("
            "'ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$"
        )
    said = refused(command, "app.py", "--database", postgres_url, cwd=folder)
    assert "PostgreSQL runs with synchronous_commit = off" in said
    assert "--allow-weak-durability" in said


def test_faulty_settings_are_all_named_at_once(folder: Path) -> None:
    said = refused(
        "serve",
        "app.py",
        cwd=folder,
        ONCEWARD_MAX_BODY_BYTES="many",
        ONCEWARD_WORKERS="-1",
        ONCEWARD_MIGRATE_AT_START="perhaps",
    )
    assert "ONCEWARD_MAX_BODY_BYTES: 'many' is not a whole number" in said
    assert "workers: -1 is too small" in said
    assert "ONCEWARD_MIGRATE_AT_START: 'perhaps' is not true or false" in said


# The socket, and who gets in.


def test_a_port_that_is_taken_is_said(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused("serve", "app.py", "--port", port, cwd=folder)
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use" in said
    for wrong in (70_000, -1):
        assert "Cannot listen on" in refused("serve", "app.py", "--port", wrong, cwd=folder)
    said = refused("serve", "app.py", "--host", "no.such.host.invalid", cwd=folder)
    assert "Cannot listen on no.such.host.invalid:3000" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])  # noqa: S104 - must be refused
def test_dev_is_refused_anywhere_but_on_loopback(folder: Path, host: str) -> None:
    said = refused("serve", "app.py", "--dev", "--host", host, cwd=folder)
    assert "--dev opens everything, so it listens on loopback only" in said


def test_dev_on_ipv6_shows_an_address_that_works(folder: Path) -> None:
    with started(*serve("app.py", "--dev", "--host", "::1"), cwd=folder) as running:
        assert running.address.startswith("http://[::1]:")
        assert post(running.address, "evt_1").status_code == 202


def test_the_first_token_is_printed_once_and_never_logged(folder: Path) -> None:
    with started(*serve("app.py"), cwd=folder) as first:
        token = first.facts["admin_token"]
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{first.address}/admin/events").status_code == 401
        assert httpx.get(f"{first.address}/admin/events", headers=headers).status_code == 200
        assert first.end() == 0
        assert token not in first.log
    with started(*serve("app.py"), cwd=folder) as second:
        assert "admin_token" not in second.facts
        assert httpx.get(f"{second.address}/admin/events", headers=headers).status_code == 200
    assert token.encode() not in (folder / "onceward.db").read_bytes()


def test_faulty_tokens_stop_the_start_and_are_not_shown(folder: Path) -> None:
    token = "not-long-enough"
    for given in (token, f"ann:{token}", f"{token}:x"):
        said = refused("serve", "app.py", cwd=folder, ONCEWARD_ADMIN_TOKENS=given)
        assert "ONCEWARD_ADMIN_TOKENS: " in said
        assert token not in said


# The log, and the end.


def test_the_log_is_json_and_holds_no_secret(folder: Path) -> None:
    with started(*serve("app.py", "--dev"), cwd=folder) as running:
        body = b'{"id":"evt_1","name":"a-private-thing"}'
        for path in ("/webhooks/stripe", "/webhooks/%0a%1b[31m"):
            httpx.post(running.address + path, content=body, headers={"stripe-signature": "v1=x"})
            time.sleep(1.05)  # such lines are written once a second
        assert running.end() == 0
        lines = [json.loads(line) for line in running.log.splitlines()]
    assert [line["message"] for line in lines] == [
        "/webhooks/stripe: 401: no timestamps, one is needed",
        "/webhooks/\\n\\x1b[31m: 404: No source has this name.",
    ]
    assert {line["logger"] for line in lines} == {"onceward.http"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_soon_and_in_good_order(
    folder: Path, database_url: str, number: signal.Signals
) -> None:
    with (
        started(*serve("app.py", "--dev", "--database", database_url), cwd=folder) as running,
        httpx.Client(base_url=running.address) as idle,
    ):
        assert idle.get("/healthz").status_code == 200
        assert post(running.address, "evt_1").status_code == 202
        asked = time.monotonic()
        assert running.end(number) == 0
        assert time.monotonic() - asked < 2
        assert "Traceback" not in running.log
    assert RawDatabase(database_url).count("onceward.events") == 1
