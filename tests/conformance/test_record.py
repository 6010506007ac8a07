"""Each event is recorded once, and every redelivery is counted."""

import asyncio
import hashlib
import random
import time
from collections import Counter
from typing import Any

import pytest

from onceward.errors import OutcomeUnknown, StoreError, Unwritable
from onceward.model.events import Outcome
from onceward.ports import Store
from onceward.store.postgres import recording
from support.database import RawDatabase
from tests.factories import EVERYTHING, arrival, arrivals, lease, opened, record

DEADLOCK_SECONDS = 1.0
RECORDED, DUPLICATE, CONFLICT = Outcome.RECORDED, Outcome.DUPLICATE, Outcome.CONFLICT


async def test_a_batch_may_mix_new_events_duplicates_and_conflicts(store: Store) -> None:
    receipts = await record(
        store, arrival("a"), arrival("b"), arrival("a"), arrival("a", body=b"[]"), arrival("c")
    )
    assert [receipt.outcome for receipt in receipts] == [
        RECORDED, RECORDED, DUPLICATE, CONFLICT, RECORDED,
    ]  # fmt: skip
    first = receipts[0].event
    assert [receipt.event for receipt in receipts[2:4]] == [first, first]


async def test_a_later_batch_recognises_earlier_events(store: Store) -> None:
    (first,) = await record(store, arrival("a"))
    again = await record(store, arrival("a", body=b"[]"), arrival("b"), arrival("a"))
    assert [receipt.outcome for receipt in again] == [CONFLICT, RECORDED, DUPLICATE]
    assert {again[0].event, again[2].event} == {first.event}


async def test_another_process_recognises_earlier_events(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with opened(database_url) as one:
        await record(one, arrival("a"))
    async with opened(database_url) as other:
        receipts = await record(other, arrival("a"), arrival("a", body=b"[]"))
    assert [receipt.outcome for receipt in receipts] == [DUPLICATE, CONFLICT]
    assert [raw_db.count(f"onceward.{table}") for table in ("events", "jobs")] == [1, 1]


async def test_the_same_id_at_two_sources_is_two_events(store: Store) -> None:
    receipts = await record(store, arrival(source="stripe"), arrival(source="ingest"))
    assert [receipt.outcome for receipt in receipts] == [RECORDED, RECORDED]
    assert receipts[0].event != receipts[1].event


async def test_similar_ids_are_different_events(store: Store) -> None:
    ids = ["evt", "EVT", "evt ", " evt", "évt", "e\u0301vt", "evt%", "evt_", "evt\n"]
    receipts = await record(store, *map(arrival, ids))
    assert Counter(receipt.outcome for receipt in receipts) == {RECORDED: len(ids)}


async def test_ids_of_the_maximum_length_are_compared_whole(store: Store) -> None:
    longest = "é" * 127
    receipts = await record(store, arrival(longest + "a"), arrival(longest + "b"))
    assert [receipt.outcome for receipt in receipts] == [RECORDED, RECORDED]
    (again,) = await record(store, arrival(longest + "a"))
    assert again.outcome is DUPLICATE


async def test_ledger_ids_follow_the_order_of_arrival(store: Store) -> None:
    ids = [f"evt_{number}" for number in range(50)]
    random.Random(7).shuffle(ids)  # noqa: S311 - any order but the sorted one
    receipts = [
        *await record(store, *map(arrival, ids[:30])),
        *await record(store, *map(arrival, ids[30:])),
    ]
    ledger_ids = [receipt.event for receipt in receipts]
    assert ledger_ids == sorted(ledger_ids)
    assert [item.event_id for item in await store.events(EVERYTHING)] == ids[::-1]


BODIES = {
    "empty": b"",
    "NUL": b"\0",
    "NULs in JSON": b'{"name": "\\u0000"}\0',
    "not UTF-8": b"\xff\xfe\x80 not UTF-8",
    "odd JSON": b'{"a": 1, "a": 1.0}\r\n',
    "escapes": b"\\x41 '':%s %(body)s :body $$",
    "1 MB": random.Random(1).randbytes(1024 * 1024),  # noqa: S311 - any bytes
}


async def test_a_payload_is_stored_byte_for_byte(store: Store, subtests: pytest.Subtests) -> None:
    for name, body in BODIES.items():
        with subtests.test(name):
            await record(store, arrival(name, body=body))
            (job,) = (await lease(store)).jobs
            assert (body if job.body is None else job.body) == body
            assert await store.load_body(job) == body
            assert job.headers == b'{"via":"test"}'


async def test_a_large_body_is_not_part_of_the_claim(store: Store) -> None:
    await record(store, arrival("small", body=b"s"), arrival("large", body=b"l" * 65_537))
    small, large = (await lease(store)).jobs
    assert (small.body, large.body) == (b"s", None)
    assert await store.load_body(large) == b"l" * 65_537


async def test_an_event_has_the_identified_fields(store: Store) -> None:
    await record(store, arrival("evt_ü", reference="cus_\N{SNOWMAN}", body=b"[]"))
    (item,) = await store.events(EVERYTHING)
    (job,) = (await lease(store)).jobs
    assert (job.source, job.event_id, job.type) == ("stripe", "evt_ü", "invoice.paid")
    assert job.reference == item.related_reference == "cus_\N{SNOWMAN}"
    assert job.received_at == item.received_at
    assert str(job.event) == item.id


async def test_a_missing_reference_is_not_an_empty_one(store: Store) -> None:
    await record(store, arrival("a"), arrival("b", reference="cus_1"), arrival("c", reference=""))
    items = {item.event_id: item.related_reference for item in await store.events(EVERYTHING)}
    assert items == {"a": None, "b": "cus_1", "c": ""}


async def test_a_conflict_does_not_replace_the_first_body(store: Store) -> None:
    await record(store, arrival(body=b"first"))
    await record(store, arrival(body=b"second", type="order.shipped"))
    (job,) = (await lease(store, handlers=["credit", "notify"])).jobs
    assert (job.body, job.type) == (b"first", "invoice.paid")


async def test_all_redeliveries_are_counted_and_the_first_are_stored(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with opened(database_url, delivery_rows=3) as store:
        await record(store, arrival())
        await record(store, *[arrival()] * 2)
        await record(store, *[arrival()] * 4)
        await record(store, *[arrival(body=b"other")] * 5, arrival())
        (event,) = await store.events(EVERYTHING)
    assert (event.deliveries, event.conflicts) == (13, 5)
    rows = Counter(outcome for (outcome,) in raw_db.rows("SELECT outcome FROM onceward.deliveries"))
    assert rows == {"duplicate": 3, "conflict": 3}


async def test_redeliveries_are_counted_even_if_none_is_stored(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with opened(database_url, delivery_rows=0) as store:
        receipts = await record(store, arrival(), arrival(), arrival(body=b"other"))
        (event,) = await store.events(EVERYTHING)
    assert [receipt.outcome for receipt in receipts] == [RECORDED, DUPLICATE, CONFLICT]
    assert (event.deliveries, event.conflicts) == (3, 1)
    assert raw_db.count("onceward.deliveries") == 0


async def test_each_conflicting_body_is_stored_once(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival(body=b"first"), arrival(body=b"x"), arrival(body=b"x"))
    await record(store, arrival(body=b"y"), arrival(body=b"x"), arrival(body=b"first"))
    rows = Counter(
        (outcome, bytes(sha256), None if body is None else bytes(body))
        for outcome, sha256, body in raw_db.rows(
            "SELECT outcome, body_sha256, body FROM onceward.deliveries"
        )
    )
    x, y, first = (hashlib.sha256(body).digest() for body in (b"x", b"y", b"first"))
    assert rows == {
        ("conflict", x, b"x"): 1,
        ("conflict", x, None): 2,
        ("conflict", y, b"y"): 1,
        ("duplicate", first, None): 1,
    }


async def test_two_hundred_concurrent_deliveries_of_one_id_make_one_event(
    store: Store, raw_db: RawDatabase
) -> None:
    batches = await asyncio.gather(*(record(store, arrival()) for _ in range(200)))
    outcomes = Counter(receipt.outcome for batch in batches for receipt in batch)
    assert outcomes == {RECORDED: 1, DUPLICATE: 199}
    assert len({receipt.event for batch in batches for receipt in batch}) == 1
    (event,) = await store.events(EVERYTHING)
    assert (event.deliveries, event.conflicts) == (200, 0)
    assert (raw_db.count("onceward.events"), raw_db.count("onceward.jobs")) == (1, 1)


async def test_concurrent_receivers_make_one_event_of_each_id(postgres_url: str) -> None:
    async with (
        opened(postgres_url) as one,
        opened(postgres_url) as two,
        opened(postgres_url) as three,
    ):
        candidates = [
            arrival(f"evt_{number % 20}", body=b"%d" % (number % 3)) for number in range(200)
        ]
        shuffler = random.Random(3)  # noqa: S311 - any order
        batches = [
            record(store, *shuffler.sample(candidates, k=200)[:50])
            for store in (one, two, three)
            for _ in range(4)
        ]
        receipts = [receipt for batch in await asyncio.gather(*batches) for receipt in batch]
        events = await one.events(EVERYTHING)
    recorded = [receipt.event for receipt in receipts if receipt.outcome is RECORDED]
    assert sorted(recorded) == sorted({receipt.event for receipt in receipts})
    assert {int(item.id) for item in events} == set(recorded)
    assert sum(item.deliveries for item in events) == len(receipts) == 600
    conflicts = sum(receipt.outcome is CONFLICT for receipt in receipts)
    assert sum(item.conflicts for item in events) == conflicts


async def test_a_batch_is_rolled_back_if_the_database_refuses_one_delivery(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.reject_inserts_of("evt_3")
    with pytest.raises(Unwritable):
        await store.record(arrivals(6))
    assert await store.events(EVERYTHING) == []
    assert raw_db.count("onceward.payloads") == raw_db.count("onceward.jobs") == 0
    assert len(await store.record(arrivals(3))) == 3


async def test_an_event_deleted_from_the_ledger_is_recorded_again(
    store: Store, raw_db: RawDatabase
) -> None:
    (first,) = await record(store, arrival("a"))
    for table in ("events", "payloads", "jobs"):
        raw_db.rows(f"DELETE FROM onceward.{table}")  # noqa: S608 - no outside data
    again = await record(store, arrival("a"), arrival("a"), arrival("b"))
    assert [receipt.outcome for receipt in again] == [RECORDED, DUPLICATE, RECORDED]
    assert again[0].event != first.event
    assert len((await lease(store, limit=9)).jobs) == 2


async def test_a_conflicting_body_is_stored_when_a_batch_repeats_it(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, arrival("a"))
    receipts = await record(store, arrival("a", body=b"[1]"), arrival("a", body=b"[1]"))
    assert [receipt.outcome for receipt in receipts] == [CONFLICT, CONFLICT]
    (again,) = await record(store, arrival("a", body=b"[1]"))
    assert again.outcome is CONFLICT
    bodies = raw_db.rows("SELECT body FROM onceward.deliveries ORDER BY id")
    assert [body and bytes(body) for (body,) in bodies] == [b"[1]", None, None]


async def test_a_conflict_mistaken_for_a_duplicate_is_stored_with_its_body(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, arrival("a", body=b"[1]"))
    sha256 = hashlib.sha256(b"[2]").hexdigest()
    literal = f"x'{sha256}'" if raw_db.is_sqlite else f"'\\x{sha256}'"
    raw_db.rows(f"UPDATE onceward.events SET body_sha256 = {literal}")  # noqa: S608 - no outside data
    (again,) = await record(store, arrival("a", body=b"[1]"))
    assert again.outcome is CONFLICT
    assert [bytes(body) for (body,) in raw_db.rows("SELECT body FROM onceward.deliveries")] == [
        b"[1]"
    ]


async def test_duplicates_of_several_events_are_counted_separately(
    store: Store, raw_db: RawDatabase
) -> None:
    a, b, c = await record(store, *map(arrival, "abc"))
    receipts = await record(store, *map(arrival, "cadcbcad"))
    assert [receipt.outcome for receipt in receipts] == [
        DUPLICATE, DUPLICATE, RECORDED, DUPLICATE, DUPLICATE, DUPLICATE, DUPLICATE, DUPLICATE,
    ]  # fmt: skip
    d = receipts[2]
    assert [receipt.event for receipt in receipts] == [
        receipt.event for receipt in (c, a, d, c, b, c, a, d)
    ]
    counts = {item.event_id: item.deliveries for item in await store.events(EVERYTHING)}
    assert counts == {"a": 3, "b": 2, "c": 4, "d": 2}
    rows = raw_db.rows("SELECT event FROM onceward.deliveries WHERE outcome = 'duplicate'")
    assert Counter(event for (event,) in rows) == {a.event: 2, b.event: 1, c.event: 3, d.event: 1}


async def test_a_duplicate_of_a_recent_event_is_not_inserted_first(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, arrival("a"))
    raw_db.reject_inserts_of("a")
    (again,) = await record(store, arrival("a"))
    assert again.outcome is DUPLICATE


@pytest.mark.parametrize("change", ["source = source + 1", "event_id = 'other'"])
async def test_a_recent_event_whose_id_now_belongs_to_another_is_recorded_again(
    store: Store, raw_db: RawDatabase, change: str
) -> None:
    """Imitate a failover to a standby that lacks the last transactions."""
    (lost,) = await record(store, arrival("a"))
    raw_db.rows(f"UPDATE onceward.events SET {change}")  # noqa: S608 - no outside data
    again = await record(store, arrival("a"), arrival("a"))
    assert [receipt.outcome for receipt in again] == [RECORDED, DUPLICATE]
    assert again[0].event != lost.event
    counts = raw_db.rows("SELECT deliveries FROM onceward.events ORDER BY id")
    assert counts == [(1,), (2,)]


async def test_duplicates_of_several_recent_events_need_one_statement(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next statement would count them too, but it looks up every key."""
    run, statements = recording._run_with_retries, []

    async def count(*arguments: Any) -> list[tuple[Any, ...]]:
        statements.append(arguments)
        return await run(*arguments)

    async with opened(postgres_url) as store:
        await record(store, *map(arrival, "abc"))
        monkeypatch.setattr(recording, "_run_with_retries", count)
        receipts = await record(store, *map(arrival, "cabc"))
    assert {receipt.outcome for receipt in receipts} == {DUPLICATE}
    assert len(statements) == 1


async def test_receivers_that_count_the_same_events_do_not_deadlock(postgres_url: str) -> None:
    ids = [f"hot_{number}" for number in range(20)]
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = RawDatabase(postgres_url).value(deadlocks)
    async with opened(postgres_url) as one, opened(postgres_url) as other:
        await record(one, *map(arrival, ids))

        async def redeliver(store: Store, seed: int) -> None:
            chance = random.Random(seed)  # noqa: S311 - any order
            for _ in range(40):
                await record(store, *(arrival(chance.choice(ids)) for _ in range(15)))

        began = time.monotonic()
        await asyncio.gather(*(redeliver(one if n % 2 else other, n) for n in range(4)))
        assert time.monotonic() - began < DEADLOCK_SECONDS * 4, "a deadlock costs a second"
    assert RawDatabase(postgres_url).value(deadlocks) == before


async def test_new_events_are_inserted_in_the_order_of_their_keys(postgres_url: str) -> None:
    """Two receivers of the same events then wait for each other in one order only."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        add_trigger(postgres_url, "INSERT INTO public.inserts VALUES (NEW.event_id); RETURN NEW;")
        raw_db.rows("CREATE TABLE public.inserts (event_id text, number serial)")
        receipts = await record(store, *map(arrival, ["c", "a", "d", "b"]))
    inserted = raw_db.rows("SELECT event_id FROM public.inserts ORDER BY number")
    assert inserted == [("a",), ("b",), ("c",), ("d",)]
    events = [receipt.event for receipt in receipts]
    assert events == sorted(events), "ids follow the order of arrival"


# Errors of PostgreSQL, raised by triggers.

TRIES = 5
DEADLOCK, SERIALIZATION_FAILURE = "40P01", "40001"


def add_trigger(postgres_url: str, body: str) -> None:
    with RawDatabase(postgres_url).connection() as connection:
        connection.execute(
            f"""
            CREATE SEQUENCE public.calls;
            CREATE FUNCTION public.interfere() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN {body} END $$;
            CREATE TRIGGER interfere BEFORE INSERT ON onceward.events
            FOR EACH ROW EXECUTE FUNCTION public.interfere();
            """
        )


def failing_for(calls: int, code: str) -> str:
    condition = f"nextval('public.calls') <= {calls}"  # a rollback does not reset a sequence
    return f"IF {condition} THEN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END IF; RETURN NEW;"


@pytest.mark.parametrize("code", [DEADLOCK, SERIALIZATION_FAILURE])
async def test_a_deadlocked_batch_is_written_again(postgres_url: str, code: str) -> None:
    async with opened(postgres_url) as store:
        add_trigger(postgres_url, failing_for(TRIES - 1, code))
        (receipt,) = await record(store, arrival())
        assert receipt.outcome is RECORDED
        assert len(await store.events(EVERYTHING)) == 1


async def test_a_batch_fails_after_the_last_try(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        add_trigger(postgres_url, failing_for(TRIES, DEADLOCK))
        with pytest.raises(StoreError):
            await record(store, arrival())
        assert await store.events(EVERYTHING) == []
        (receipt,) = await record(store, arrival())
        assert receipt.outcome is RECORDED


async def test_an_event_that_the_database_neither_stores_nor_knows_has_no_receipt(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store:
        add_trigger(postgres_url, "RETURN CASE WHEN NEW.event_id <> 'lost' THEN NEW END;")
        with pytest.raises(OutcomeUnknown, match="neither recorded nor recognised"):
            await record(store, arrival("lost"))
        with pytest.raises(Unwritable):  # so that the request is found, and its neighbours recorded
            await record(store, arrival("kept"), arrival("lost"))
