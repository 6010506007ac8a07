"""The command line: what it starts, and the errors it prints."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import psycopg
import pytest

from onceward.runtime.redact import redact_url
from support.database import RawDatabase
from support.processes import COMMAND, eventually
from tests.integration.commands import APP, environment, error_of, post, run, serve, started

pytestmark = pytest.mark.every_store

SECRET = "whsec_the_secret_of_stripe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder that contains an app."""
    (tmp_path / "app.py").write_text(APP.format(arguments=""))
    return tmp_path


# Help and startup output.


OPTIONS: list[tuple[list[str], list[str]]] = [
    ([], ["serve", "work", "migrate"]),
    (["serve"], ["--dev", "--port", "--host", "--database", "--json", "--workers", "3000"]),
    (["work"], ["--database", "--json", "--workers", "--allow-weak-durability"]),
    (["migrate"], ["--database", "--json"]),
]


def test_help_names_every_option(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for command, words in OPTIONS:
        with subtests.test(" ".join(command)):
            done = run(*command, "--help", cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            for word in words:
                assert word in done.stdout


def test_the_first_line_of_json_describes_a_service_that_warns_of_nothing(folder: Path) -> None:
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
        response = httpx.get(f"{running.address}/readyz")
        assert response.json() == {"ready": True, "warnings": []}
        assert "No worker" not in running.log
        assert post(facts["address"], "evt_1").status_code == 202
        assert (folder / "onceward.db").exists()


def test_the_banner_shows_the_urls_and_no_secret(folder: Path) -> None:
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
        eventually(lambda: is_healthy(address), "the service is healthy")
        process.terminate()
        shown = process.communicate(timeout=20)[0]
        assert process.returncode == 0
    assert f"{address}/events/ingest" in shown
    assert f"{address}/webhooks/stripe" in shown
    assert "credit ← order.paid" in shown
    assert "Admin token" in shown
    assert SECRET not in shown
    assert "Traceback" not in shown


def is_healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz").is_success
    except httpx.TransportError:
        return False


# The database.


def test_the_command_line_overrides_code_and_code_overrides_the_environment(folder: Path) -> None:
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


UNUSABLE = [
    ("mysql://ann:{password}@db/app", "database_url starts with 'mysql://'"),
    ("ann:{password}@db/app", "database_url has no scheme"),
    ("sqlite://", "database_url starts with 'sqlite://'"),
    ("sqlite://x.db", "write sqlite:///x.db, with three slashes"),
    ("sqlite:///", "names no file"),
    ("sqlite:///:memory:", "names no file"),
    ("sqlite:///x.db?mode=ro", "'mode=ro' is not an option"),
    (
        "sqlite:////nowhere/at/all/x.db",
        "there is no folder /nowhere/at/all. Create",
    ),
    (
        "sqlite:////proc/x.db",
        "/proc/x.db cannot be opened: the folder /proc cannot be written to (No such file",
    ),
    ("postgresql://ann:{password}@[::1", "is not a PostgreSQL address"),
    ("postgresql://ann:{password}%zz@db/app", "is not a PostgreSQL address"),
    ("postgresql://ann:{password}@x@db/app", "Percent-encode it: write %40 for @"),
    ("postgresql://ann:{password}/x@db/app", "Percent-encode it: write %40 for @"),
    ("postgresql://ann:x@{password}/x@db/app", "Percent-encode it: write %40 for @"),
    ("postgresql://ann:12/{password}@db/app", "Percent-encode it: write %40 for @"),
    ("postgresql://ann:x@{password}:12/x@db/app", "Percent-encode it: write %40 for @"),
    ("postgresql://ann:x@y?{password}@db/app", "is not a PostgreSQL address"),
    ("postgresql://ann:x#{password}@127.0.0.1:1/app", "Connection refused"),
    ("postgresql://ann:{password}@db/app?x=1", "unknown parameter 'x'; PostgreSQL has no such"),
    ("postgresql://ann:{password}@db/app?sslmod=require", "'sslmod'; did you mean 'sslmode'?"),
    ("postgresql://ann:{password}@db/app?ssl=true&pgbouncer=true", "parameter 'pgbouncer'; Po"),
    ("postgresql://ann:{password}@db:54x/app", "the port '54x' is not a number"),
    ("postgresql://ann:{password}@db:5432,[::1]:5x/app", "the port '5x' is not a number"),
    ("postgresql://ann:{password}/app", "the port is not a number; write postgresql://user:p"),
    ("postgresql://ann:{password}?x=y", "the port is not a number; write postgresql://user:p"),
    ("postgresql://ann:{password}@127.0.0.1:1/app", "Connection refused"),
    ("postgresql://127.0.0.1:1/app?password={password}", "Check the database: --database"),
]


def test_an_unusable_database_is_an_error_without_its_password(
    folder: Path, subtests: pytest.Subtests
) -> None:
    for url, message in UNUSABLE:
        with subtests.test(url):
            address = url.format(password="hunt3r")
            error = error_of("serve", "app.py", "--port", "0", "--database", address, cwd=folder)
            assert message in error
            assert "hunt3r" not in error
            assert "\\n" not in error


def test_a_wrong_password_is_an_error_without_the_password(
    folder: Path, bare_postgres_url: str
) -> None:
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS missing_role")
    url = bare_postgres_url.replace("postgres@", "missing_role:hunter2@")
    error = error_of("serve", "app.py", "--port", "0", "--database", url, cwd=folder)
    assert "missing_role" in error
    assert "hunter2" not in error


def test_the_password_is_not_in_the_startup_line(folder: Path, postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", "postgres:hunter2@")
    with_query = f"{postgres_url}?password=hunter2"
    for address in (url, with_query):
        with started(*serve("app.py", "--database", address), cwd=folder) as running:
            assert "hunter2" not in json.dumps(running.facts)
            assert running.facts["database"].startswith("postgresql://postgres")


def test_a_second_process_on_one_sqlite_file_is_an_error(folder: Path) -> None:
    with started(*serve("app.py", "--dev"), cwd=folder) as running:
        for command in (serve("app.py"), ("work", "app.py")):
            error = error_of(*command, cwd=folder)
            assert "Another process serves onceward.db" in error
            assert "PostgreSQL" in error
        assert run("migrate", "app.py", cwd=folder).stdout == "sqlite:///onceward.db: up to date\n"
        assert post(running.address, "evt_1").status_code == 202
    with started(*serve("app.py", "--dev"), cwd=folder) as running:
        assert post(running.address, "evt_1").json()["duplicate"] is True


def test_processes_share_one_postgresql_database(folder: Path, postgres_url: str) -> None:
    database = ("--database", postgres_url)
    with (
        started(*serve("app.py", "--dev", "--workers", 0, *database), cwd=folder) as first,
        started(*serve("app.py", "--dev", "--workers", 0, *database), cwd=folder) as second,
    ):
        assert first.facts["workers"] == 0
        eventually(lambda: "No worker has been seen since" in first.log, "it warns")
        assert f"the same database. This process uses {redact_url(postgres_url)}." in first.log
        assert post(first.address, "evt_1").json()["duplicate"] is False
        assert post(second.address, "evt_1").json()["duplicate"] is True
        jobs = httpx.get(f"{first.address}/admin/jobs").json()["items"]
        assert [job["status"] for job in jobs] == ["queued"]
        with started("work", "app.py", *database, cwd=folder) as worker:
            assert worker.facts["address"] is None
            done = "/admin/jobs?status=done"
            eventually(lambda: httpx.get(second.address + done).json()["items"], "the job is done")
            assert worker.stop() == 0


def test_work_without_handlers_or_workers_is_an_error(folder: Path) -> None:
    assert "has nothing to run: workers is 0" in error_of(
        "work", "app.py", "--workers", 0, cwd=folder
    )
    (folder / "idle.py").write_text("from onceward import Inbox\ninbox = Inbox()")
    fix = "(import the modules that define them in idle.py)"
    assert f"it has no handlers {fix}" in error_of("work", "idle.py", cwd=folder)


def test_a_worker_on_sqlite_says_that_nothing_can_receive(folder: Path) -> None:
    with started("work", "app.py", cwd=folder) as worker:
        assert (
            "SQLite supports one process: nothing can receive while this worker runs. "
            "ONCEWARD_DATABASE_URL is not set, so the database is sqlite:///onceward.db. "
            "Use the PostgreSQL database of the app that receives, or run `onceward serve app.py`."
        ) in worker.log
    with started("work", "app.py", "--database", "sqlite:///other.db", cwd=folder) as worker:
        assert "worker runs. The database is sqlite:///other.db. Use" in worker.log


def test_migrate_applies_migrations_once(folder: Path, bare_database_url: str) -> None:
    command = ("migrate", "--database", bare_database_url, "--json")
    first, second = (json.loads(run(*command, cwd=folder).stdout) for _ in range(2))
    assert first["applied"][0] == "0001 schema"
    assert second["applied"] == []
    assert RawDatabase(bare_database_url).count("onceward.events") == 0


def test_an_outdated_schema_is_an_error_when_migrate_at_start_is_off(
    folder: Path, bare_database_url: str
) -> None:
    command = ("serve", "app.py", "--port", "0", "--database", bare_database_url)
    error = error_of(*command, cwd=folder, ONCEWARD_MIGRATE_AT_START="false")
    assert "lacks migrations (0001 schema" in error
    assert error.endswith(f"). Run: onceward migrate --database {bare_database_url}\n")


def test_the_command_for_an_outdated_schema_names_the_database_of_the_app(
    tmp_path: Path, bare_postgres_url: str
) -> None:
    url = bare_postgres_url.replace("postgres@", "postgres:s3cretword@")
    (tmp_path / "shop.py").write_text(APP.format(arguments=f"{url!r}, migrate_at_start=False"))
    for command in (serve("shop.py"), ("work", "shop.py")):
        error = error_of(*command, cwd=tmp_path)
        assert error.startswith(f"onceward: The database {redact_url(url)} lacks migrations (0001 ")
        assert error.endswith("). Run: onceward migrate shop.py\n")
    assert run("migrate", "shop.py", cwd=tmp_path).returncode == 0
    with started(*serve("shop.py"), cwd=tmp_path) as running:
        assert running.facts["handlers"]


def test_the_command_for_an_outdated_schema_shows_no_password(
    folder: Path, bare_postgres_url: str
) -> None:
    url = bare_postgres_url.replace("postgres@", "postgres:s3cretword@")
    command = ("serve", "app.py", "--port", "0", "--database", url)
    error = error_of(*command, cwd=folder, ONCEWARD_MIGRATE_AT_START="false")
    assert error.endswith("). Run: onceward migrate --database …\n")
    assert "s3cretword" not in error


def test_migrate_without_an_app_and_a_database_creates_nothing(folder: Path) -> None:
    error = error_of("migrate", cwd=folder, DATABASE_URL="postgresql://db/shop")
    assert error == (
        "onceward: Name the app or the database: `onceward migrate app.py`, --database URL, or "
        "ONCEWARD_DATABASE_URL (DATABASE_URL is not read).\n"
    )
    assert not (folder / "onceward.db").exists()
    run("migrate", cwd=folder, ONCEWARD_DATABASE_URL="sqlite:///chosen.db")
    run("migrate", "app.py", cwd=folder)
    assert {path.name for path in folder.glob("*.db")} == {"chosen.db", "onceward.db"}


def test_a_role_without_a_grant_does_not_start(folder: Path, bare_postgres_url: str) -> None:
    run("migrate", "--database", bare_postgres_url, cwd=folder)
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS onceward_cli; CREATE ROLE onceward_cli LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA onceward TO onceward_cli")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA onceward TO onceward_cli")
        url = bare_postgres_url.replace("postgres@", "onceward_cli@")
        try:
            error = error_of("serve", "app.py", "--port", "0", "--database", url, cwd=folder)
        finally:
            connection.execute("DROP OWNED BY onceward_cli; DROP ROLE onceward_cli")
    missing, advice = error.splitlines()
    names = "onceward.ledger_ids, onceward.worker_numbers"
    assert missing == f"onceward: The role onceward_cli lacks USAGE on the sequences {names}."
    assert f"GRANT USAGE ON SEQUENCE {names} TO onceward_cli. docs/install.md" in advice


def test_weak_durability_of_sqlite_must_be_allowed(folder: Path) -> None:
    for weak in ("normal", "off"):
        url = f"sqlite:///weak.db?synchronous={weak}"
        error = error_of("serve", "app.py", "--port", "0", "--database", url, cwd=folder)
        assert "SQLite runs with synchronous = " in error
        assert "--allow-weak-durability" in error
        with started(
            *serve("app.py", "--database", url, "--allow-weak-durability"), cwd=folder
        ) as running:
            assert is_healthy(running.address)


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("work",)])
def test_weak_durability_of_postgresql_must_be_allowed(
    folder: Path, postgres_url: str, command: tuple[str, ...]
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "DO $$ BEGIN EXECUTE format("
            "'ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$"
        )
    error = error_of(*command, "app.py", "--database", postgres_url, cwd=folder)
    assert "PostgreSQL runs with synchronous_commit = off" in error
    assert "--allow-weak-durability" in error


def test_all_invalid_settings_are_reported_at_once(folder: Path) -> None:
    error = error_of(
        "serve",
        "app.py",
        cwd=folder,
        ONCEWARD_MAX_BODY_BYTES="many",
        ONCEWARD_WORKERS="-1",
        ONCEWARD_MIGRATE_AT_START="perhaps",
    )
    assert "ONCEWARD_MAX_BODY_BYTES: 'many' is not a whole number" in error
    assert "workers: -1 is too small" in error
    assert "ONCEWARD_MIGRATE_AT_START: 'perhaps' is not true or false" in error


# The socket and access.


def test_an_address_that_cannot_be_bound_is_an_error(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = error_of("serve", "app.py", "--port", port, cwd=folder)
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use" in error
    error = error_of("serve", "app.py", "--host", "no.such.host.invalid", cwd=folder)
    assert "Cannot listen on no.such.host.invalid:3000" in error


def test_dev_requires_a_loopback_address(folder: Path, subtests: pytest.Subtests) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com", ""):  # noqa: S104 - must be an error
        with subtests.test(host):
            error = error_of("serve", "app.py", "--dev", "--host", host, cwd=folder)
            assert "--dev opens the admin API, so it needs a loopback address" in error


def test_dev_on_ipv6_prints_a_usable_address(folder: Path) -> None:
    with started(*serve("app.py", "--dev", "--host", "::1"), cwd=folder) as running:
        assert running.address.startswith("http://[::1]:")
        assert post(running.address, "evt_1").status_code == 202


def test_the_first_admin_token_is_printed_once_and_never_logged(folder: Path) -> None:
    with started(*serve("app.py"), cwd=folder) as first:
        token = first.facts["admin_token"]
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{first.address}/admin/events").status_code == 401
        assert httpx.get(f"{first.address}/admin/events", headers=headers).status_code == 200
        assert first.stop() == 0
        assert token not in first.log
    with started(*serve("app.py"), cwd=folder) as second:
        assert "admin_token" not in second.facts
        assert httpx.get(f"{second.address}/admin/events", headers=headers).status_code == 200
    assert token.encode() not in (folder / "onceward.db").read_bytes()


def test_invalid_admin_tokens_are_an_error_without_the_tokens(folder: Path) -> None:
    token = "not-long-enough"
    for tokens in (token, f"ann:{token}", f"{token}:x"):
        error = error_of("serve", "app.py", cwd=folder, ONCEWARD_ADMIN_TOKENS=tokens)
        assert "ONCEWARD_ADMIN_TOKENS: " in error
        assert token not in error


# Logs and shutdown.


def test_the_log_is_json_without_secrets(folder: Path) -> None:
    with started(*serve("app.py", "--dev", "--log", "json"), cwd=folder) as running:
        body = b'{"id":"evt_1","name":"a-private-thing"}'
        headers = {"stripe-signature": "v1=x"}
        httpx.post(f"{running.address}/webhooks/stripe", content=body, headers=headers)
        time.sleep(1.05)  # rejections are logged at most once a second
        httpx.post(f"{running.address}/webhooks/%0a%1b[31m", content=body, headers=headers)
        assert running.stop() == 0
        lines = [json.loads(line) for line in running.log.splitlines()]
    rejected, unknown = (line["message"] for line in lines)
    assert rejected == (
        "/webhooks/stripe: 401: expected one timestamp, found 0; "
        "`onceward verify stripe --app app.py` explains a captured request (from 127.0.0.1)"
    )
    assert unknown == (
        "/webhooks/\\n\\x1b[31m: 404: no source has this name; the sources are stripe "
        "(from 127.0.0.1)"
    )
    assert {line["client"] for line in lines} == {"127.0.0.1"}
    assert {line["logger"] for line in lines} == {"onceward.http"}


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_within_two_seconds(
    folder: Path, database_url: str, stop_signal: signal.Signals
) -> None:
    with (
        started(*serve("app.py", "--dev", "--database", database_url), cwd=folder) as running,
        httpx.Client(base_url=running.address) as idle,
    ):
        assert idle.get("/healthz").status_code == 200
        assert post(running.address, "evt_1").status_code == 202
        signalled_at = time.monotonic()
        assert running.stop(stop_signal) == 0
        assert time.monotonic() - signalled_at < 2
        assert "Traceback" not in running.log
    assert RawDatabase(database_url).count("onceward.events") == 1


@pytest.mark.parametrize("port", ["80000", "-1"])
def test_a_port_out_of_range_is_refused(folder: Path, port: str) -> None:
    error = error_of("serve", "app.py", "--port", port, cwd=folder)
    assert error == f"onceward: --port {port} is out of range; use 0 to 65535\n"


def test_a_role_that_may_not_create_tables_at_start_gets_the_reason_and_the_grant(
    folder: Path, bare_postgres_url: str
) -> None:
    with (folder / "app.py").open("a") as file:
        file.write("@inbox.at_start\nasync def tables(tx):\n")
        file.write("    await tx.execute('CREATE TABLE IF NOT EXISTS orders (id text)')\n")
    run("migrate", "--database", bare_postgres_url, cwd=folder)
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE TABLE orders ()")
        connection.execute("DROP ROLE IF EXISTS recv; CREATE ROLE recv LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA onceward TO recv")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA onceward TO recv")
        connection.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA onceward TO recv")
        url = bare_postgres_url.replace("postgres@", "recv@")
        try:
            done = run(*serve("app.py", "--database", url), cwd=folder)
            grant = "GRANT CREATE ON SCHEMA public TO recv"
            assert done.stderr.splitlines()[0] == (
                "onceward: @inbox.at_start tables failed: InsufficientPrivilege: permission denied "
                "for schema public (app.py:12 in tables). The role recv may not create tables in "
                "public, and PostgreSQL checks this even for IF NOT EXISTS. Create the table as "
                f"the owner and remove this at_start, or: {grant}"
            )
            connection.execute(grant.encode())
            with started(*serve("app.py", "--database", url), cwd=folder) as running:
                assert running.facts["handlers"]
        finally:
            connection.execute("DROP OWNED BY recv; DROP ROLE recv")


def test_an_error_that_is_not_about_the_address_gives_its_own_advice_alone(
    folder: Path, bare_postgres_url: str
) -> None:
    run("migrate", "--database", bare_postgres_url, cwd=folder)
    name = bare_postgres_url.rpartition("/")[2]
    setting = "default_transaction_read_only = on"
    RawDatabase(bare_postgres_url).rows(f"ALTER DATABASE {name} SET {setting}")
    command = ("serve", "app.py", "--port", "0", "--database", bare_postgres_url)
    assert error_of(*command, cwd=folder) == (
        "onceward: The database is read-only: a standby, or default_transaction_read_only is set "
        "for the role or database.\n"
    )
