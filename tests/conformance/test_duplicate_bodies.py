"""Duplicate bodies and conflicts: the two hashes of an event, on both stores."""

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import onceward
from onceward.model.admin import PageQuery
from onceward.model.events import Arrival, DuplicateBody, Outcome
from onceward.model.jobs import FailureType, JobStatus
from onceward.model.retention import Purgeable
from onceward.ports import Store
from onceward.sources.configure import make_source
from onceward.sources.request import Headers, Request
from onceward.store import migrate
from onceward.store.migrate import migrations
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import (
    ACT,
    EVERYTHING,
    arrival,
    checked,
    lease,
    make_store,
    opened,
    record,
)

NOW = 1_790_000_000.0
SECRET = "a-secret-of-the-account"
FLAG, HOLD = DuplicateBody.FLAGGED, DuplicateBody.HELD


async def flagged(store: Store) -> list[str]:
    items = await store.events(PageQuery(limit=100, duplicate_body=True))
    return [item.event_id for item in items]


async def originals(store: Store) -> dict[str, str]:
    """Return the id of the event that came first, for each flagged event."""
    items = await store.events(EVERYTHING)
    names = {item.id: item.event_id for item in items}
    return {
        item.event_id: names[item.duplicate_body_of]
        for item in items
        if item.duplicate_body_of is not None
    }


async def test_the_original_of_a_duplicate_body_is_the_first_event_that_has_it(
    store: Store,
) -> None:
    for event_id, body in (("a", b"1"), ("b", b"2"), ("c", b"2"), ("d", b"3"), ("e", b"1")):
        await record(store, checked(event_id, FLAG, body=body))
    assert await originals(store) == {"c": "b", "e": "a"}


@pytest.mark.parametrize("together", [True, False], ids=["in-one-batch", "one-by-one"])
async def test_an_event_with_the_body_of_another_is_flagged(
    store: Store, *, together: bool
) -> None:
    arrivals = [checked("a", FLAG), checked("b", FLAG), checked("c", FLAG, body=b"[]")]
    for batch in [arrivals] if together else [[single] for single in arrivals]:
        receipts = await record(store, *batch)
        assert {receipt.outcome for receipt in receipts} == {Outcome.RECORDED}
    assert await flagged(store) == ["b"]
    items = {item.event_id: item for item in await store.events(EVERYTHING)}
    assert items["b"].duplicate_body_of == items["a"].id
    assert items["a"].duplicate_body_of is None
    assert {job.status for job in await store.jobs(EVERYTHING)} == {JobStatus.QUEUED}


async def test_sources_without_the_rule_are_not_checked(store: Store) -> None:
    await record(store, arrival("a"), arrival("b"))
    await record(store, checked("c", FLAG), arrival("d"))
    assert await flagged(store) == []


async def test_the_rule_applies_beside_events_of_sources_without_it(store: Store) -> None:
    await record(store, checked("a", FLAG))
    await record(store, checked("b", FLAG), arrival("c", source="ingest"))
    await record(store, arrival("d", source="ingest"), checked("e", FLAG))
    assert sorted(await flagged(store)) == ["b", "e"]


async def test_a_redelivery_is_not_a_duplicate_body(store: Store) -> None:
    for _ in range(2):
        await record(store, checked("a", HOLD), checked("a", HOLD))
    assert await flagged(store) == []


async def test_bodies_are_compared_within_a_source(store: Store) -> None:
    await record(store, checked("a", HOLD), checked("a", HOLD, source="ingest"))
    assert await flagged(store) == []


async def test_a_held_job_runs_only_after_a_requeue(store: Store) -> None:
    await record(store, checked("a", HOLD))
    await record(store, checked("b", HOLD), checked("c", HOLD, body=b"[]"))
    jobs = {job.external_event_id: job for job in await store.jobs(EVERYTHING)}
    assert jobs["a"].status is jobs["c"].status is JobStatus.QUEUED
    held = jobs["b"]
    assert (held.status, held.failure_type, held.attempts) == ("failed", FailureType.HELD, 0)
    assert "the same body" in (held.last_error or "")
    assert {job.event_id for job in (await lease(store)).jobs} == {"a", "c"}
    assert await store.requeue(int(held.id), ACT) is not None
    assert [job.event_id for job in (await lease(store)).jobs] == ["b"]


async def test_concurrent_receivers_flag_one_of_two_events(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as other:
        for number in range(20):
            body = str(number).encode()
            await asyncio.gather(
                record(one, checked(f"a{number}", HOLD, body=body)),
                record(other, checked(f"b{number}", HOLD, body=body)),
            )
        assert len(await flagged(one)) == 20
        held = await one.jobs(PageQuery(limit=100, status="failed"))
        assert {job.external_event_id for job in held} == set(await flagged(one))
        others = {"a": "b", "b": "a"}
        assert await originals(one) == {
            event_id: others[event_id[0]] + event_id[1:] for event_id in await flagged(one)
        }


async def test_a_receiver_names_the_event_that_another_commits_during_its_statement(
    postgres_url: str,
) -> None:
    """The statement waits for the other transaction, and its own snapshot lacks that row."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, arrival("first"))
        with psycopg.connect(postgres_url) as other:
            other.execute(
                "INSERT INTO onceward.body_hashes (source, body_sha256, event) "
                "SELECT source, body_sha256, id FROM onceward.events"
            )
            recording = asyncio.create_task(record(store, checked("second", FLAG)))

            async def is_waiting() -> bool:
                return bool(raw_db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))

            await eventually_async(is_waiting, "the receiver waits for the other one")
        await recording
        assert await originals(store) == {"second": "first"}


# The hash of what the proof covers, beside that of the body.


def mailgun(event_id: str, *, token: str, now: float = NOW, note: str = "") -> Arrival:
    """Return what is recorded for a request that Mailgun signs with a token and a time."""
    document = {
        "signature": {"token": token * 50},
        "event-data": {"id": event_id, "event": "opened", "note": note},
    }
    signed = onceward.sign("mailgun", secret=SECRET, body=json.dumps(document).encode(), now=now)
    return verified("mailgun", Request(Headers([]), signed.body), now)


def verified(preset: str, request: Request, now: float, **options: Any) -> Arrival:
    source = make_source("stripe", preset=preset, secrets=[SECRET], **options)
    events = source.verify(request, now)
    assert isinstance(events, list)
    (single,) = source.arrivals(events, request.headers)
    return single


async def outcomes(store: Store, *batches: list[Arrival]) -> list[str]:
    return [receipt.outcome for batch in batches for receipt in await record(store, *batch)]


@pytest.mark.parametrize("together", [True, False], ids=["in-one-batch", "one-by-one"])
async def test_a_retry_that_is_signed_anew_is_a_duplicate(store: Store, *, together: bool) -> None:
    first, retry = mailgun("e1", token="a"), mailgun("e1", token="b", now=NOW + 600)
    assert first.body != retry.body
    batches = [[first, retry]] if together else [[first], [retry]]
    assert await outcomes(store, *batches) == ["recorded", "duplicate"]
    assert await flagged(store) == []


@pytest.mark.parametrize("together", [True, False], ids=["in-one-batch", "one-by-one"])
async def test_another_body_under_the_same_id_is_a_conflict_although_its_proof_is_known(
    store: Store, *, together: bool
) -> None:
    first, changed = (mailgun("e1", token="a", note=note) for note in ("", "forged"))
    batches = [[first, changed]] if together else [[first], [changed]]
    assert await outcomes(store, *batches) == ["recorded", "conflict"]
    (delivery,) = [
        item for item in await store.deliveries(EVERYTHING) if item.outcome == "conflict"
    ]
    conflict = await store.conflict(int(delivery.id))
    assert conflict is not None
    assert conflict.body == changed.body


@pytest.mark.parametrize("together", [True, False], ids=["in-one-batch", "one-by-one"])
async def test_a_captured_token_under_another_id_is_flagged_with_the_first_event(
    store: Store, *, together: bool
) -> None:
    captured = [mailgun(name, token="a", note=name) for name in ("e1", "e2", "e3")]
    batches = [captured] if together else [[single] for single in captured]
    assert set(await outcomes(store, *batches)) == {"recorded"}
    assert await originals(store) == {"e2": "e1", "e3": "e1"}
    assert sorted(await flagged(store)) == ["e2", "e3"]


async def test_another_request_with_the_same_body_and_another_proof_is_not_flagged(
    store: Store,
) -> None:
    await record(store, checked("a", HOLD, covered=b"1"), checked("b", HOLD, covered=b"2"))
    assert await flagged(store) == []


async def test_another_spelling_of_a_signed_form_is_a_duplicate(store: Store) -> None:
    url = "https://shop.example/webhooks/stripe"
    fields = b"From=%2B1&MessageSid=SM1&MessageStatus=delivered"
    signed = onceward.sign("twilio", secret=SECRET, body=fields, url=url)
    headers = Headers([(b"x-twilio-signature", signed.headers["X-Twilio-Signature"].encode())])
    spellings = [
        verified("twilio", Request(headers, body, url=url), NOW, url=url, duplicate_body="flag")
        for body in (fields, fields.replace(b"M", b"%4D"))
    ]
    assert spellings[0].body != spellings[1].body
    assert await outcomes(store, spellings) == ["recorded", "duplicate"]
    assert await outcomes(store, spellings) == ["duplicate", "duplicate"]
    assert await flagged(store) == []


async def test_the_first_event_keeps_its_name_after_a_purge(
    store: Store, raw_db: RawDatabase
) -> None:
    """A flagged event is never the duplicate of one that came after it."""
    receipts = await record(store, *(checked(name, FLAG, covered=b"1") for name in ("a", "b")))
    first = receipts[0].event
    raw_db.rows(f"DELETE FROM onceward.jobs WHERE event = {first}")  # noqa: S608 - no outside data
    shift = "864000000000" if raw_db.is_sqlite else "interval '10 days'"
    raw_db.rows(f"UPDATE onceward.events SET received_at = received_at - {shift}")  # noqa: S608 - no outside data
    before = datetime.now(UTC) - timedelta(days=1)
    assert (await store.purge(Purgeable.EVENTS, 0, limit=5, before=before)).rows == 1
    assert raw_db.count("onceward.body_hashes") == 0
    await record(store, checked("c", FLAG, covered=b"1"))
    items = {item.event_id: item.duplicate_body_of for item in await store.events(EVERYTHING)}
    assert items == {"b": str(first), "c": None}


# Two versions of the code during a deploy.


VERSION_BEFORE = """
    INSERT INTO onceward.events (id, received_at, source, routed, event_id, type, body_sha256)
    SELECT
        (SELECT COALESCE(max(id), 0) + 1000 FROM onceward.events),
        {now}, id, false, '{event_id}', 't', {sha256}
    FROM onceward.sources WHERE name = 'stripe';
    INSERT INTO onceward.body_hashes (source, body_sha256, event)
    SELECT source, body_sha256, id FROM onceward.events WHERE event_id = '{event_id}'
    ON CONFLICT DO NOTHING;
    INSERT INTO onceward.duplicate_bodies (event)
    SELECT id FROM onceward.events
    WHERE event_id = '{event_id}' AND id NOT IN (SELECT event FROM onceward.body_hashes)
"""


def record_as_before(raw_db: RawDatabase, event_id: str) -> None:
    """Write the rows of an event as the version before migration 5 does, with one hash."""
    sha256 = hashlib.sha256(b"1").hexdigest()
    literal = f"x'{sha256}'" if raw_db.is_sqlite else f"'\\x{sha256}'::bytea"
    now = "0" if raw_db.is_sqlite else "now()"
    for statement in VERSION_BEFORE.split(";"):
        raw_db.rows(statement.format(event_id=event_id, now=now, sha256=literal))


async def test_a_content_that_an_older_version_recorded_is_known(
    store: Store, raw_db: RawDatabase
) -> None:
    record_as_before(raw_db, "older")
    await record(store, checked("newer", FLAG, body=b"[]", covered=b"1"))
    record_as_before(raw_db, "older too")
    assert sorted(await flagged(store)) == ["newer", "older too"]
    assert await originals(store) == {"newer": "older"}


async def test_the_migration_names_the_first_event_of_each_flagged_one(
    bare_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_db = RawDatabase(bare_database_url)
    known = migrations("sqlite" if raw_db.is_sqlite else "postgres")
    with monkeypatch.context() as before:
        before.setattr(migrate, "migrations", lambda _: known[:4])
        older = make_store(bare_database_url)
        await older.migrate()
        await older.close()
    raw_db.rows("INSERT INTO onceward.sources (name) VALUES ('stripe')")
    for event_id in ("first", "second", "third"):
        record_as_before(raw_db, event_id)
    async with opened(bare_database_url) as store:
        assert await originals(store) == {"second": "first", "third": "first"}
