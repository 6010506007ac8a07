"""PostgreSQL alone: the privileges that a role needs, as docs/install.md states them."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceward import Event, Inbox, PermanentError
from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.model.admin import Pausable
from onceward.ports import EVERY_DUTY, Duty
from onceward.runtime.redact import LIMIT_CHARACTERS, one_line
from onceward.runtime.sql_text import Sql
from onceward.store.postgres.privileges import needed_on_tables
from onceward.store.queries import Queries
from onceward.work.claiming import heartbeat
from onceward.work.running.effects import Effects
from onceward.work.running.transaction import Transaction
from support.database import RawDatabase
from support.processes import eventually_async
from tests.duties import STATEMENTS
from tests.factories import ACT, arrival, claim, lease, make_store, opened, record
from tests.inline_sources import inline_inbox
from tests.inprocess import FAST, receive_only, run_inbox

ROLE = "onceward_app"
SEPARATE_ROLES = ("shop_owner", "shop_receiver", "shop_worker")
INSTALL_PAGE = Path(__file__).parents[2] / "docs" / "install.md"
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


async def receives_and_works(url: str, event_id: str = "evt_1") -> bool:
    async with opened(url) as store:
        await record(store, arrival(event_id))
        leased = await lease(store)
        return await store.settle_done(leased.token, leased.jobs[0].id)


async def error_at_open(url: str, *, serving: bool = True, migrate_at_start: bool = True) -> str:
    store = make_store(url, migrate_at_start=migrate_at_start)
    try:
        with pytest.raises(ConfigurationError) as raised:
            await store.open(serving=serving)
    finally:
        await store.close()
    assert len(one_line(str(raised.value))) <= LIMIT_CHARACTERS  # logs show no more
    return str(raised.value)


@pytest.fixture
async def granted_url(bare_postgres_url: str, role_url: str) -> str:
    """Return the URL of a database for a role that has the grants of docs/install.md."""
    owner = make_store(bare_postgres_url)
    await owner.migrate()
    await owner.close()
    run(bare_postgres_url, RUNTIME_GRANTS)
    return role_url


async def test_a_role_that_may_only_connect_is_refused(role_url: str) -> None:
    message = await error_at_open(role_url)
    assert f"the role {ROLE} may not apply them: permission denied for database" in message
    assert f"GRANT CREATE ON DATABASE {database(role_url)} TO {ROLE}" in message
    assert "docs/install.md" in message


async def test_the_grant_of_the_error_lets_the_role_migrate(
    bare_postgres_url: str, role_url: str
) -> None:
    (grant,) = re.findall(r"GRANT [^.]*", await error_at_open(role_url))
    run(bare_postgres_url, grant)
    assert await receives_and_works(role_url)


@pytest.mark.parametrize("usage", [True, False])
async def test_a_schema_of_another_role_must_be_migrated_by_that_role(
    bare_postgres_url: str, role_url: str, *, usage: bool
) -> None:
    run(bare_postgres_url, "CREATE SCHEMA onceward")
    if usage:
        run(bare_postgres_url, f"GRANT USAGE ON SCHEMA onceward TO {ROLE}")
    message = await error_at_open(role_url)
    assert "permission denied for schema onceward" in message
    assert "Run `onceward migrate` as postgres, which owns the schema" in message


async def test_a_table_of_another_role_must_be_migrated_by_that_role(
    bare_postgres_url: str, granted_url: str
) -> None:
    run(
        bare_postgres_url,
        "ALTER TABLE onceward.attempts DROP COLUMN traceback;"
        "DELETE FROM onceward.migrations WHERE number = 2",
    )
    run(bare_postgres_url, f"ALTER SCHEMA onceward OWNER TO {ROLE}")
    message = await error_at_open(granted_url)
    assert "lacks migrations (0002 tracebacks)" in message
    assert "must be owner of table attempts" in message
    assert "Run `onceward migrate` as postgres" in message


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


async def test_a_role_with_grants_on_the_tables_can_receive_and_work(granted_url: str) -> None:
    assert await receives_and_works(granted_url)
    assert RawDatabase(granted_url).count("onceward.migrations") > 0


GRANTS = {
    "USAGE ON SCHEMA onceward": "USAGE on the schema onceward",
    "SELECT ON TABLE onceward.migrations": "SELECT on the table onceward.migrations",
    "UPDATE ON TABLE onceward.jobs": "UPDATE on the table onceward.jobs",
    "SELECT, INSERT ON TABLE onceward.payloads": "SELECT, INSERT on the table onceward.payloads",
    "USAGE ON SEQUENCE onceward.ledger_ids": "USAGE on the sequence onceward.ledger_ids",
    "USAGE ON SEQUENCE onceward.worker_numbers": "USAGE on the sequence onceward.worker_numbers",
}
"""Privileges of a role, and their names in an error."""


async def test_a_missing_grant_is_named_and_the_statement_fixes_it(
    bare_postgres_url: str, granted_url: str, subtests: pytest.Subtests
) -> None:
    for (revoked, missing), migrates in product(GRANTS.items(), [True, False]):
        name = f"{revoked}{', migrating' * migrates}"
        with subtests.test(name):
            run(bare_postgres_url, f"{RUNTIME_GRANTS} REVOKE {revoked} FROM {ROLE}")
            message = await error_at_open(granted_url, migrate_at_start=migrates)
            assert message == (
                f"The role {ROLE} lacks {missing}.\n"
                f"Run as postgres: GRANT {revoked} TO {ROLE}. docs/install.md lists all grants."
            )
            run(bare_postgres_url, f"GRANT {revoked} TO {ROLE}")
            assert await receives_and_works(granted_url, name)


async def test_a_function_that_only_its_owner_may_execute_is_named(
    bare_postgres_url: str, granted_url: str
) -> None:
    function = "FUNCTION onceward.first_event_with"
    run(bare_postgres_url, f"REVOKE EXECUTE ON {function} FROM PUBLIC")
    grant = f"GRANT EXECUTE ON {function} TO {ROLE}"
    assert grant in await error_at_open(granted_url)
    run(bare_postgres_url, grant)
    assert await receives_and_works(granted_url)


async def test_many_missing_grants_are_few_statements(
    bare_postgres_url: str, granted_url: str
) -> None:
    run(
        bare_postgres_url,
        f"REVOKE ALL ON ALL TABLES IN SCHEMA onceward FROM {ROLE};"
        f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA onceward FROM {ROLE};"
        f"REVOKE ALL ON SCHEMA onceward FROM {ROLE}",
    )
    message = await error_at_open(granted_url)
    assert (
        f"privileges on {len(needed_on_tables(EVERY_DUTY))} tables (onceward.archives, " in message
    )
    statements = message.partition("Run as postgres: ")[2].partition(". docs/")[0]
    assert len(statements.split("; ")) == 3
    run(bare_postgres_url, statements)
    assert await receives_and_works(granted_url)


async def test_a_command_names_a_missing_grant_on_the_schema(
    bare_postgres_url: str, granted_url: str
) -> None:
    run(bare_postgres_url, f"REVOKE USAGE ON SCHEMA onceward FROM {ROLE}")
    assert "USAGE on the schema" in await error_at_open(granted_url, serving=False)


async def test_update_on_the_sequence_is_as_good_as_usage(
    bare_postgres_url: str, granted_url: str
) -> None:
    sequence = "SEQUENCE onceward.ledger_ids"
    run(
        bare_postgres_url,
        f"REVOKE USAGE ON {sequence} FROM {ROLE}; GRANT UPDATE ON {sequence} TO {ROLE}",
    )
    assert await receives_and_works(granted_url)


async def test_names_that_sql_must_quote_are_quoted(
    bare_postgres_url: str, granted_url: str
) -> None:
    odd_role = f'"{ROLE} of ""ann"""'
    run(
        bare_postgres_url, f"DROP ROLE IF EXISTS {odd_role}; ALTER ROLE {ROLE} RENAME TO {odd_role}"
    )
    try:
        run(bare_postgres_url, f"REVOKE UPDATE ON onceward.jobs FROM {odd_role}")
        url = granted_url.replace(f"{ROLE}@", f"{ROLE}%20of%20%22ann%22@")
        message = await error_at_open(url)
        assert f"GRANT UPDATE ON TABLE onceward.jobs TO {odd_role}." in message
    finally:
        run(bare_postgres_url, f"ALTER ROLE {odd_role} RENAME TO {ROLE}")


async def test_a_missing_table_is_named(bare_postgres_url: str, granted_url: str) -> None:
    run(bare_postgres_url, "DROP TABLE onceward.workers, onceward.tokens")
    message = await error_at_open(granted_url)
    assert message.startswith(
        "The database lacks the table onceward.tokens, the table onceward.workers, although"
    )
    assert "complete backup" in message


async def test_a_policy_that_hides_rows_is_an_outage_and_not_a_missing_row(
    bare_postgres_url: str, granted_url: str
) -> None:
    async with opened(granted_url) as store:
        await record(store, arrival())
        run(
            bare_postgres_url,
            "ALTER TABLE onceward.jobs ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY hidden ON onceward.jobs USING (false)",
        )
        with pytest.raises(StoreUnavailable, match="row-level security policy"):
            await claim(store)


# The list of privileges is exactly what the statements use.


async def test_refused_writes_are_a_warning_until_one_succeeds(
    bare_postgres_url: str, granted_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_inbox(Inbox(), granted_url) as bench:
        run(bare_postgres_url, f"REVOKE INSERT ON onceward.events FROM {ROLE}")
        for number in range(3):
            assert (await bench.try_post("a", event_id=f"evt_{number}")).status_code == 503
        assert (
            "The last events could not be recorded, and their senders got 503: permission denied "
            "for table events. The log onceward.receive has the details."
        ) in await bench.warnings()
        run(bare_postgres_url, f"GRANT INSERT ON onceward.events TO {ROLE}")
        await bench.post("a")
        assert not [text for text in await bench.warnings() if "could not be recorded" in text]
    assert [line.getMessage() for line in caplog.records if line.name == "onceward.receive"] == [
        "ledger unavailable; asking senders to retry: permission denied for table events",
        "ledger available again; asked 3 requests to retry",
    ]


async def test_a_worker_that_may_not_claim_is_a_warning_of_every_receiver(
    bare_postgres_url: str, granted_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.05)
    inbox = Inbox()

    @inbox.on("a")
    async def credit() -> None:
        """Do nothing."""

    receiver = inbox.service({"database_url": granted_url}, dev=True)
    await receiver.open()

    async def warnings() -> tuple[str, ...]:
        await receiver._watch.refresh()
        return receiver._watch.warnings

    async def is_well() -> bool:
        return not await warnings()

    async with run_inbox(inbox, granted_url) as bench:
        await eventually_async(is_well, "the worker is seen")
        run(bare_postgres_url, f"REVOKE UPDATE ON onceward.jobs FROM {ROLE}")
        await bench.post("a")
        (warning,) = await eventually_async(warnings, "the receiver warns")
        start, _, reason = warning.partition(" UTC: ")
        assert re.fullmatch(r"A worker has claimed no job since \S+ \S+", start)
        assert reason == "permission denied for table jobs. The log names the worker."
        assert await bench.warnings() == [warning]  # the worker's own process, too
        run(bare_postgres_url, f"GRANT UPDATE ON onceward.jobs TO {ROLE}")
        await eventually_async(is_well, "the warning ends")
        await bench.wait_until_idle()
    await receiver.close()


def explain(connection: psycopg.Connection, statement: Sql) -> None:
    """Let PostgreSQL check the privileges of a statement without running it."""
    nulls = dict.fromkeys(statement.names)
    psycopg.ClientCursor(connection).execute(b"EXPLAIN " + statement.pyformat, nulls)


def statements(duties: Duty) -> list[Sql]:
    """Return the named statements of some duties, with the blocks of every condition."""
    queries = Queries("postgres")
    unneeded = [names for duty, names in STATEMENTS.items() if duty is None or duty not in duties]
    unused = set(" ".join(unneeded).split())
    assert unused <= queries._texts.keys()
    return [
        statement
        for name, text in queries._texts.items()
        if name not in unused
        for statement in queries(name, *re.findall(r"-- if (\w+)", text))
    ]


@pytest.mark.parametrize("duties", [Duty.RECEIVE, Duty.WORK])
async def test_the_needed_privileges_are_those_of_the_statements(
    bare_postgres_url: str, granted_url: str, duties: Duty
) -> None:
    needed = needed_on_tables(duties)
    for name in needed_on_tables(EVERY_DUTY):
        run(bare_postgres_url, f"REVOKE ALL ON onceward.{name} FROM {ROLE}")
    for name, privileges in needed.items():
        run(bare_postgres_url, f"GRANT {', '.join(privileges)} ON onceward.{name} TO {ROLE}")
    unneeded = []
    with psycopg.connect(granted_url, autocommit=True) as connection:
        for statement in statements(duties):
            explain(connection, statement)
        for name, privileges in needed.items():
            if name == "migrations":
                continue  # its statements are not named
            using = [each for each in statements(duties) if f"onceward.{name}" in each.text]
            for privilege in privileges:
                run(bare_postgres_url, f"REVOKE {privilege} ON onceward.{name} FROM {ROLE}")
                if not any(is_denied(connection, each) for each in using):
                    unneeded.append(f"{privilege} on {name}")
                run(bare_postgres_url, f"GRANT {privilege} ON onceward.{name} TO {ROLE}")
    assert unneeded == []


def is_denied(connection: psycopg.Connection, statement: Sql) -> bool:
    try:
        explain(connection, statement)
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


@pytest.fixture
async def separate_urls(bare_postgres_url: str) -> AsyncIterator[tuple[str, str, str]]:
    """Return the URLs of the roles of docs/install.md, on a migrated database with its grants."""
    section = INSTALL_PAGE.read_text().partition("### Separate roles")[2].partition("###")[0]
    roles, tables = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    name = database(bare_postgres_url)
    roles = roles.replace("CREATE DATABASE shop OWNER", f"ALTER DATABASE {name} OWNER TO")
    run(bare_postgres_url, roles)
    owner, receiver, worker = (
        bare_postgres_url.replace("postgres@", f"{role}@") for role in SEPARATE_ROLES
    )
    try:
        migrating = make_store(owner)
        await migrating.migrate()
        await migrating.close()
        run(owner, tables)
        yield owner, receiver, worker
    finally:
        run(bare_postgres_url, f"ALTER DATABASE {name} OWNER TO postgres")
        for role in SEPARATE_ROLES:
            run(bare_postgres_url, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


async def test_the_install_page_grants_each_role_what_it_needs_and_no_more(
    separate_urls: tuple[str, str, str],
) -> None:
    owner, *_ = separate_urls
    granted: dict[str, dict[str, set[str]]] = {role: {} for role in SEPARATE_ROLES}
    for role, table, privilege in RawDatabase(owner).rows(
        "SELECT grantee, table_name, privilege_type FROM information_schema.role_table_grants "
        "WHERE table_schema = 'onceward'"
    ):
        granted.setdefault(role, {}).setdefault(table, set()).add(privilege)
    for role, duty in (("shop_receiver", Duty.RECEIVE), ("shop_worker", Duty.WORK)):
        needed = {name: set(each) for name, each in needed_on_tables(duty).items()}
        assert granted[role] == needed


async def test_the_separate_roles_of_the_install_page_can_receive_and_work(
    separate_urls: tuple[str, str, str],
) -> None:
    owner, receiver_url, worker_url = separate_urls
    inbox = Inbox()

    @inbox.on("a")
    async def credit(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        if event.id == "failing":
            raise PermanentError("no such account")
        assert await effects.once(event.key)
        await tx.execute("INSERT INTO orders VALUES (:id, 100)", {"id": event.id})

    working_service = inbox.service({"database_url": worker_url, **FAST})
    worker = working_service.worker()
    await working_service.open(receives=False)
    async with receive_only(inbox, receiver_url) as bench:
        task = asyncio.create_task(worker.run())
        for event_id in ("first", "first", "failing"):
            await bench.post("a", event_id=event_id)
        await bench.post("a", {"other": "body"}, event_id="first")
        assert (await bench.try_post("a", event_id="")).status_code == 422
        await bench.wait_until_idle()
        failed = (await bench.jobs())["failing/credit"]
        assert failed.failure_type == "permanent"
        assert await bench.service.store.requeue(int(failed.id), ACT)
        assert await bench.service.store.cancel(int(failed.id), ACT)
        for kind, name in ((Pausable.HANDLER, "credit"), (Pausable.SOURCE, "ingest")):
            assert await bench.service.store.pause(kind, name, ACT)
            assert await bench.service.store.resume(kind, name, ACT)
        for service in (bench.service, working_service):
            assert "does not own the tables" in await service.maintenance.run()
        worker.stop()
        await task
    await working_service.close()
    assert RawDatabase(owner).rows("SELECT * FROM orders") == [("first", 100)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(receiver_url, "SELECT * FROM orders")
    for url, duties in ((receiver_url, Duty.WORK), (worker_url, Duty.RECEIVE)):
        store = make_store(url)
        with pytest.raises(ConfigurationError, match="lacks"):
            await store.open(serving=True, duties=duties)
        await store.close()


@pytest.mark.parametrize("migrate_at_start", [True, False])
async def test_a_missing_grant_of_one_duty_does_not_name_those_of_the_other(
    separate_urls: tuple[str, str, str], *, migrate_at_start: bool
) -> None:
    owner, _, worker_url = separate_urls
    run(owner, "REVOKE SELECT ON onceward.migrations FROM shop_worker")
    store = make_store(worker_url, migrate_at_start=migrate_at_start)
    with pytest.raises(ConfigurationError, match=r"lacks SELECT on the table \S+migrations\.\n"):
        await store.open(serving=True, duties=Duty.WORK)


async def test_a_worker_with_the_role_of_a_receiver_does_not_start(
    separate_urls: tuple[str, str, str],
) -> None:
    service = Inbox().service({"database_url": separate_urls[1]})
    service.worker()
    with pytest.raises(ConfigurationError, match="role shop_receiver lacks"):
        await service.open(receives=False)


async def test_an_inline_source_with_the_role_of_a_receiver_does_not_start(
    separate_urls: tuple[str, str, str],
) -> None:
    service = inline_inbox().service({"database_url": separate_urls[1]})
    with pytest.raises(ConfigurationError, match="role shop_receiver lacks"):
        await service.open()


async def test_a_table_of_somebody_else_in_the_schema_is_not_locked(
    bare_postgres_url: str, role_url: str
) -> None:
    run(bare_postgres_url, f"GRANT CREATE ON DATABASE {database(role_url)} TO {ROLE}")
    store = make_store(role_url)
    await store.migrate()
    run(
        bare_postgres_url,
        "CREATE TABLE onceward.reports (id int);"
        "ALTER TABLE onceward.attempts DROP COLUMN traceback;"
        "DELETE FROM onceward.migrations WHERE number = 2",
    )
    assert await store.migrate() == ["0002 tracebacks"]
    await store.close()
