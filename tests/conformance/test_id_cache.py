"""Receivers share an id cache in Redis. It only gives hints: the ledger decides."""

import psycopg
import pytest

from onceward.errors import StoreError
from onceward.model.events import Outcome
from onceward.runtime.failpoints import FailpointReached
from onceward.store.postgres import id_hints
from support.database import RawDatabase
from support.postgres import Cluster
from support.programs import ProgramMissing
from support.redis import RedisServer
from tests.factories import EVERYTHING, arrival, arrivals
from tests.id_cache import (
    TTL_SECONDS,
    keys_of,
    ledger_identity,
    receiver,
    redis_key,
    unexplained,
)

CHEAP = ["record_duplicates"]
COSTLY = ["record_new", "record_redeliveries"]
DAY_SECONDS = 86_400


def command_calls(redis_server: RedisServer, command: str) -> int:
    """Return how often Redis ran a command."""
    stats = redis_server.command(b"INFO", b"commandstats").decode()
    (calls,) = [
        line.partition("calls=")[2].partition(",")[0]
        for line in stats.splitlines()
        if line.startswith(f"cmdstat_{command}:")
    ] or ["0"]
    return int(calls)


async def test_a_duplicate_of_another_receivers_event_takes_the_cheapest_statement(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with (
        receiver(postgres_url, redis_server.url) as first,
        receiver(postgres_url, redis_server.url) as second,
    ):
        (recorded,) = await first.record(arrival())
        assert await second.statements_for(arrival()) == CHEAP
        (again,) = await first.record(arrival())
        assert again == recorded._replace(outcome=Outcome.DUPLICATE)
        (event,) = await first.store.events(EVERYTHING)
        assert event.deliveries == 3


async def test_without_redis_the_same_duplicate_takes_two_statements(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with (
        receiver(postgres_url, redis_server.url) as first,
        receiver(postgres_url, redis_server.url) as second,
    ):
        await first.record(arrival())
        redis_server.command(b"FLUSHALL")
        assert await second.statements_for(arrival()) == COSTLY
        assert await keys_of(postgres_url, redis_server.url), "the second receiver set the key"


async def test_a_batch_asks_once_and_only_about_events_that_the_process_does_not_know(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        before = command_calls(redis_server, "mget")
        await only.record(*arrivals(50))
        assert command_calls(redis_server, "mget") == before + 1
        await only.record(*arrivals(50))
        assert command_calls(redis_server, "mget") == before + 1
        assert command_calls(redis_server, "set") == 50 + 1, "one is the probe"


async def test_a_batch_may_hold_new_events_and_duplicates_of_both_memories(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with (
        receiver(postgres_url, redis_server.url) as first,
        receiver(postgres_url, redis_server.url) as second,
    ):
        await first.record(arrival("theirs"))
        await second.record(arrival("own"))
        outcomes = [
            receipt.outcome
            for receipt in await second.record(
                arrival("new"), arrival("theirs"), arrival("own"), arrival("new"), arrival("theirs")
            )
        ]
        again = Outcome.DUPLICATE
        assert outcomes == [Outcome.RECORDED, again, again, again, again]
        counts = {
            event.event_id: event.deliveries for event in await first.store.events(EVERYTHING)
        }
        assert counts == {"new": 2, "theirs": 3, "own": 2}
        assert await unexplained(postgres_url, redis_server.url) == []


async def test_a_conflict_is_found_and_gets_no_key(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with (
        receiver(postgres_url, redis_server.url) as first,
        receiver(postgres_url, redis_server.url) as second,
    ):
        await first.record(arrival())
        (receipt,) = await second.record(arrival(body=b"other"))
        assert receipt.outcome is Outcome.CONFLICT
        assert list(await keys_of(postgres_url, redis_server.url)) == [
            redis_key(postgres_url, arrival())
        ]


async def test_a_key_lasts_as_long_as_its_source_may_resend(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        await only.record(arrival(source="stripe"), arrival(source="ingest"))
        expected = {"stripe": TTL_SECONDS["stripe"], "ingest": 30 * DAY_SECONDS}
        for source, seconds in expected.items():
            key = redis_key(postgres_url, arrival(source=source))
            left = int(redis_server.command(b"TTL", key).strip(b":\r\n"))
            assert seconds - 60 < left <= seconds


# Keys are set after the commit.


async def test_a_batch_that_is_not_committed_sets_no_key(
    postgres_url: str, redis_server: RedisServer
) -> None:
    raw_db = RawDatabase(postgres_url)
    async with receiver(postgres_url, redis_server.url) as only:
        raw_db.rows("ALTER TABLE onceward.events ADD CONSTRAINT refuse CHECK (event_id <> 'evt_1')")
        with pytest.raises(StoreError):
            await only.store.record([arrival()])
        await only.wait_until_set()
        assert await keys_of(postgres_url, redis_server.url) == {}
        raw_db.rows("ALTER TABLE onceward.events DROP CONSTRAINT refuse")
        await only.record(arrival())
        assert len(await keys_of(postgres_url, redis_server.url)) == 1


@pytest.mark.parametrize(("point", "is_committed"), [("writing", False), ("committed", True)])
async def test_a_process_that_ends_before_the_keys_are_set_leaves_none(
    postgres_url: str, redis_server: RedisServer, point: str, *, is_committed: bool
) -> None:
    async with receiver(postgres_url, redis_server.url, failpoints=f"record.{point}:raise") as only:
        with pytest.raises(FailpointReached):
            await only.store.record([arrival()])
        await only.wait_until_set()
        assert RawDatabase(postgres_url).count("onceward.events") == is_committed
        assert await keys_of(postgres_url, redis_server.url) == {}
        (receipt,) = await only.record(arrival())
        assert (receipt.outcome is Outcome.DUPLICATE) is is_committed
        assert len(await keys_of(postgres_url, redis_server.url)) == 1


async def test_a_receipt_does_not_wait_for_the_keys(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receiver(postgres_url, redis_server.url, failpoints="redis.setting:raise") as only:
        (receipt,) = await only.record(arrival())
        assert receipt.outcome is Outcome.RECORDED
        assert await keys_of(postgres_url, redis_server.url) == {}


# Wrong hints.


async def test_a_key_for_an_event_that_the_ledger_lacks_loses_nothing(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        redis_server.command(b"SET", redis_key(postgres_url, arrival()), b"4711")
        (receipt,) = await only.record(arrival())
        assert receipt.outcome is Outcome.RECORDED
        assert RawDatabase(postgres_url).count("onceward.payloads") == 1
        assert await unexplained(postgres_url, redis_server.url) == [], "the key was replaced"


async def test_a_key_that_names_another_event_counts_nothing_for_that_one(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        (other,) = await only.record(arrival("other"))
        redis_server.command(b"SET", redis_key(postgres_url, arrival()), b"%d" % other.event)
        (receipt,) = await only.record(arrival())
        assert receipt.outcome is Outcome.RECORDED
        counts = {event.event_id: event.deliveries for event in await only.store.events(EVERYTHING)}
        assert counts == {"other": 1, "evt_1": 1}


async def test_keys_that_name_one_event_do_not_merge_different_deliveries(
    postgres_url: str, redis_server: RedisServer
) -> None:
    """The ledger checks one delivery for each hinted event: no other may ride on its result."""
    async with (
        receiver(postgres_url, redis_server.url) as first,
        receiver(postgres_url, redis_server.url) as second,
    ):
        (real,) = await first.record(arrival("real"))
        for each in ("a", "b"):
            redis_server.command(b"SET", redis_key(postgres_url, arrival(each)), b"%d" % real.event)
        for batch in (["real", "a", "b"], ["b", "real"]):
            await second.record(*map(arrival, batch))
        counts = {
            event.event_id: event.deliveries for event in await first.store.events(EVERYTHING)
        }
        assert counts == {"real": 3, "a": 1, "b": 2}


async def test_a_wrong_hint_does_not_let_a_later_body_win(
    postgres_url: str, redis_server: RedisServer
) -> None:
    first, later = arrival(body=b"first"), arrival(body=b"later")
    async with receiver(postgres_url, redis_server.url) as only:
        redis_server.command(b"SET", redis_key(postgres_url, first), b"4711")
        receipts = await only.record(first, later, first)
    outcomes = [receipt.outcome for receipt in receipts]
    assert outcomes == [Outcome.RECORDED, Outcome.CONFLICT, Outcome.DUPLICATE]


NO_LEDGER_IDS = (
    *(b"", b"0", b"-1", b"garbage", b"\xff\x00", b"9" * 19, b"9" * 20, b"1" * 500, "٣".encode()),
    *(b"1" * 513, b"\r\n$1\r\n1" * 50_000),
)


async def test_a_value_that_is_no_ledger_id_is_no_hint(
    postgres_url: str, redis_server: RedisServer, subtests: pytest.Subtests
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        for number, value in enumerate(NO_LEDGER_IDS):
            with subtests.test(f"{value[:20]!r} {len(value)}"):
                event = arrival(f"evt_{number}")
                redis_server.command(b"SET", redis_key(postgres_url, event), value)
                (receipt,) = await only.record(event)
                assert receipt.outcome is Outcome.RECORDED
                assert not only.ids.warnings
                assert await unexplained(postgres_url, redis_server.url) == []


async def test_a_key_of_another_type_is_no_hint(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        redis_server.command(b"RPUSH", redis_key(postgres_url, arrival()), b"1")
        (receipt,) = await only.record(arrival())
        assert receipt.outcome is Outcome.RECORDED
        assert await unexplained(postgres_url, redis_server.url) == []


# The ledger and its history.


async def test_two_ledgers_on_one_redis_do_not_share_keys(
    postgres_url: str, bare_postgres_url: str, redis_server: RedisServer
) -> None:
    async with (
        receiver(postgres_url, redis_server.url) as first,
        receiver(bare_postgres_url, redis_server.url) as second,
    ):
        await first.record(arrival("before"), arrival())
        assert await second.statements_for(arrival()) == ["record_new"]
        assert await unexplained(postgres_url, redis_server.url) == []
        assert await unexplained(bare_postgres_url, redis_server.url) == []


async def test_a_restore_in_place_is_another_history(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        await only.record(arrival("lost"))
        with psycopg.connect(postgres_url) as connection:
            connection.execute("TRUNCATE onceward.events, onceward.payloads, onceward.jobs CASCADE")
            connection.execute("TRUNCATE onceward.routes")  # another file, as of a loaded dump
        with pytest.raises(StoreError):
            await only.store.record([arrival("lost")])
        await only.record(arrival("other"))
        (receipt,) = await only.record(arrival("lost"))
        assert receipt.outcome is Outcome.RECORDED
        assert len(await keys_of(postgres_url, redis_server.url)) == 2
        assert await unexplained(postgres_url, redis_server.url) == []


def test_a_promoted_copy_is_another_history(postgres_cluster: Cluster, postgres_url: str) -> None:
    postgres_cluster.start()
    try:
        folder = postgres_cluster.back_up(postgres_cluster.url("postgres"))
    except ProgramMissing as error:
        pytest.skip(str(error))
    name = postgres_url.rpartition("/")[2]
    with Cluster(existing=folder) as copy:
        copy.promote()
        assert ledger_identity(copy.url(name)) != ledger_identity(postgres_url)


async def test_a_database_that_does_not_say_which_ledger_it_is_is_used_without_redis(
    postgres_url: str,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Some hosted databases lack one of the functions."""
    monkeypatch.setattr(id_hints, "LEDGER_IDENTITY", "SELECT pg_control_of_nobody()")
    async with receiver(postgres_url, redis_server.url) as only:
        for number in range(3):
            (receipt,) = await only.record(arrival(str(number)))
            assert receipt.outcome is Outcome.RECORDED
        assert redis_server.command(b"DBSIZE") == b":1\r\n", "only the probe"
    lines = [each for each in caplog.messages if each.startswith("Redis is not used")]
    assert len(lines) == 1
