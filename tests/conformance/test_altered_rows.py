"""Triggers of others on Onceward's tables: nothing is lost or applied twice because of them."""

import asyncio
import logging
from typing import Any, Final

import pytest
from msgspec.structs import replace

from onceward import Event, Inbox, Transaction
from onceward.errors import (
    LedgerUnavailable,
    NotSettled,
    StoreBlocked,
    StoreError,
    Unwritable,
)
from onceward.model.events import Outcome
from onceward.ports import Store
from onceward.receive.recorder import Recorder
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from support.database import RawDatabase
from tests.factories import (
    EVERYTHING,
    HANDLERS,
    arrival,
    claim,
    leased_job,
    make_store,
    opened,
    record,
    working,
)
from tests.inprocess import FAST, run_inbox

TABLES = ("events", "payloads", "jobs")


def add_trigger(raw_db: RawDatabase, table: str, body: str, event: str = "INSERT") -> None:
    """Create a trigger on one of our tables of PostgreSQL, which runs before each row."""
    raw_db.rows(
        "CREATE OR REPLACE FUNCTION public.alter_row() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {body} END $$"
    )
    raw_db.rows(
        f"CREATE TRIGGER altering BEFORE {event} ON onceward.{table} "
        "FOR EACH ROW EXECUTE FUNCTION public.alter_row()"
    )


def discard_inserts(raw_db: RawDatabase, table: str, condition: str = "true") -> None:
    """Discard the inserts into one of our tables that meet a condition."""
    if raw_db.is_sqlite:
        raw_db.rows(
            f"CREATE TRIGGER altering BEFORE INSERT ON onceward.{table} WHEN {condition} "
            "BEGIN SELECT RAISE(IGNORE); END"
        )
    else:
        add_trigger(raw_db, table, f"IF {condition} THEN RETURN NULL; END IF; RETURN NEW;")


def refuse_settlements(raw_db: RawDatabase, body: str = "RETURN NULL;") -> None:
    """Discard every update of a job."""
    if raw_db.is_sqlite:
        raw_db.rows(
            "CREATE TRIGGER altering BEFORE UPDATE ON onceward.jobs BEGIN SELECT RAISE(IGNORE); END"
        )
    else:
        add_trigger(raw_db, "jobs", body, "UPDATE")


def drop_trigger(raw_db: RawDatabase, table: str) -> None:
    name = "altering" if raw_db.is_sqlite else f"altering ON onceward.{table}"
    raw_db.rows(f"DROP TRIGGER {name}")


def counts(raw_db: RawDatabase) -> list[int]:
    return [raw_db.count(f"onceward.{table}") for table in TABLES]


@pytest.mark.parametrize("table", TABLES)
async def test_an_event_whose_rows_are_discarded_is_not_recorded(
    store: Store, raw_db: RawDatabase, table: str
) -> None:
    discard_inserts(raw_db, table)
    with pytest.raises(StoreError, match=rf"trigger or a rule on the table onceward[._]{table} "):
        await record(store, arrival("lost"))
    assert counts(raw_db) == [0, 0, 0]
    drop_trigger(raw_db, table)
    (receipt,) = await record(store, arrival("lost"))
    assert receipt.outcome is Outcome.RECORDED
    assert counts(raw_db) == [1, 1, 1]


async def test_the_job_of_one_handler_is_not_discarded_silently(
    database_url: str, raw_db: RawDatabase
) -> None:
    both = [replace(entry, routes=HANDLERS[0].routes) for entry in HANDLERS]
    async with opened(database_url, handlers=both) as store:
        last = raw_db.value("SELECT max(id) FROM onceward.handlers")
        discard_inserts(raw_db, "jobs", f"NEW.handler = {last}")
        with pytest.raises(Unwritable, match="jobs"):
            await record(store, arrival())
    assert counts(raw_db) == [0, 0, 0]


async def test_a_conflicting_body_is_not_discarded_silently(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, arrival(body=b"{}"))
    discard_inserts(raw_db, "deliveries")
    with pytest.raises(Unwritable, match="deliveries"):
        await record(store, arrival(body=b"[]"))
    assert [event.conflicts for event in await store.events(EVERYTHING)] == [0]


@pytest.mark.parametrize(
    ("table", "condition"),
    [("events", "NEW.event_id = 'evt_1'"), ("payloads", "length(NEW.body) = 3")],
)
async def test_the_neighbours_of_a_discarded_event_are_recorded(
    store: Store, raw_db: RawDatabase, table: str, condition: str
) -> None:
    discard_inserts(raw_db, table, condition)
    recorder = Recorder(store, Settings(), SystemClock())
    bodies = {"evt_0": b"{}", "evt_1": b"{ }", "evt_2": b"{}"}
    pending = [recorder.submit([arrival(key, body=body)]) for key, body in bodies.items()]
    for accepted in (pending[0], pending[2]):
        assert await accepted
    with pytest.raises(LedgerUnavailable):
        await pending[1]
    await recorder.close()
    assert sorted(event.event_id for event in await store.events(EVERYTHING)) == ["evt_0", "evt_2"]
    assert counts(raw_db) == [2, 2, 2]


OTHER_KEYS: Final = (
    "NEW.id := NEW.id + 1000;",
    "NEW.event_id := upper(NEW.event_id);",
    "NEW.event_id := NEW.event_id || random();",
    "NEW.source := NEW.source + 1;",
)


async def test_an_event_with_another_key_is_not_recorded(
    postgres_url: str, subtests: pytest.Subtests
) -> None:
    raw_db = RawDatabase(postgres_url)
    for body in OTHER_KEYS:
        with subtests.test(body):
            async with opened(postgres_url) as store:
                add_trigger(raw_db, "events", f"{body} RETURN NEW;")
                try:
                    for _ in range(2):
                        with pytest.raises(Unwritable, match=r"onceward\.events"):
                            await record(store, arrival(), arrival("evt_2"))
                finally:
                    drop_trigger(raw_db, "events")
            assert counts(raw_db) == [0, 0, 0]


async def test_a_payload_that_its_job_would_not_find_is_not_recorded(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        body = "NEW.received_at := NEW.received_at + interval '1 second'; RETURN NEW;"
        add_trigger(raw_db, "payloads", body)
        with pytest.raises(Unwritable, match=r"onceward\.payloads"):
            await record(store, arrival())
    assert counts(raw_db) == [0, 0, 0]


async def test_a_claim_whose_lease_is_discarded_fails(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival())
    discard_inserts(raw_db, "leases")
    with pytest.raises(StoreBlocked, match=r"onceward[._]leases"):
        await claim(store)
    drop_trigger(raw_db, "leases")
    assert (await claim(store)).lease is not None


@pytest.mark.parametrize("body", ["RETURN NULL;", "RETURN OLD;"])
async def test_the_writes_of_a_job_that_cannot_be_settled_are_rolled_back(
    store: Store, raw_db: RawDatabase, body: str
) -> None:
    raw_db.rows("CREATE TABLE applied (event text)")
    token, job = await leased_job(store)
    refuse_settlements(raw_db, body)
    async with working(store) as work:
        await work.tx.execute("INSERT INTO applied VALUES ('evt_1')")
        with pytest.raises(NotSettled, match=r"onceward[._]jobs"):
            await work.unit.settle(token, job.id)
    assert raw_db.count("applied") == 0
    with pytest.raises(NotSettled, match=r"onceward[._]jobs"):
        await store.settle_done(token, job.id)
    drop_trigger(raw_db, "jobs")
    assert await store.settle_done(token, job.id)


async def test_a_job_that_cannot_be_settled_runs_again_when_its_lease_has_expired(
    database_url: str, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, runs = Inbox(), []

    @inbox.on("a")
    async def apply(event: Event[Any], tx: Transaction) -> None:
        runs.append(event.id)
        await tx.execute("INSERT INTO applied VALUES (:event)", {"event": event.id})

    @inbox.on("b")
    async def only_read(event: Event[Any]) -> None:
        runs.append(event.id)

    raw_db.rows("CREATE TABLE applied (event text)")
    async with run_inbox(inbox, database_url, **FAST | {"lease_seconds": 60.0}) as bench:
        refuse_settlements(raw_db, "RETURN OLD;")
        await bench.post("a", event_id="evt_1")
        await bench.post("b", event_id="evt_2")
        await asyncio.sleep(1.0)
        assert sorted(runs) == ["evt_1", "evt_2"]
        assert raw_db.count("applied") == 0
    errors = [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]
    assert len(errors) == len(runs)
    assert all("cannot be marked as done, and nothing was committed" in text for text in errors)


async def test_an_effect_whose_mark_is_discarded_is_not_taken_for_done(
    store: Store, raw_db: RawDatabase
) -> None:
    _, job = await leased_job(store)
    discard_inserts(raw_db, "effects")
    async with working(store) as work:
        with pytest.raises(StoreBlocked, match=r"onceward[._]effects"):
            await work.unit.mark_effect(job.id, "mail:1", None)


@pytest.mark.parametrize("table", ["sources", "handlers", "routes"])
async def test_a_process_whose_registration_is_discarded_does_not_start(
    bare_database_url: str, table: str
) -> None:
    migrating = make_store(bare_database_url)
    await migrating.migrate()
    await migrating.close()
    discard_inserts(RawDatabase(bare_database_url), table)
    with pytest.raises(StoreBlocked, match=f"a rule on the table {table} "):
        async with opened(bare_database_url):
            pass


async def test_a_restored_route_that_is_discarded_stops_recording(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        discard_inserts(raw_db, "routes")
        raw_db.rows("DELETE FROM onceward.routes")
        with pytest.raises(StoreBlocked, match="routes"):
            await record(store, arrival())  # on a new connection
    assert counts(raw_db) == [0, 0, 0]


async def test_ids_that_cannot_be_reserved_stop_recording(sqlite_url: str) -> None:
    raw_db = RawDatabase(sqlite_url)
    async with opened(sqlite_url) as store:
        raw_db.rows(
            "CREATE TRIGGER altering BEFORE UPDATE ON onceward_counters "
            "BEGIN SELECT RAISE(IGNORE); END"
        )
        with pytest.raises(StoreBlocked, match="onceward_counters"):
            await record(store, arrival())
    assert counts(raw_db) == [0, 0, 0]
