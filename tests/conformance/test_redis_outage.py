"""With Redis killed, frozen, full, emptied or wrong, nothing changes but the speed."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from onceward.accelerators.breaker import MAX_TIMEOUTS
from onceward.accelerators.redis import id_cache as redis_id_cache
from onceward.accelerators.redis.id_cache import MAX_QUEUED_EVENTS
from onceward.model.events import Outcome
from onceward.ports.id_cache import RecordedDelivery
from support.database import RawDatabase
from support.postgres import free_port
from support.processes import eventually_async
from support.redis import IN_MEMORY, RedisServer
from tests.factories import arrival, arrivals
from tests.id_cache import Receiver, keys_of, receiver, redis_key, unexplained

FEW_MILLISECONDS = 0.25
"""The deadline, and what a busy machine adds."""
ROOT = Path(__file__).parents[2]
Lines = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_id_cache, "RETRY_SECONDS", 0.05)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return a function that returns the lines of the log so far."""
    return lambda: [
        record.getMessage() for record in caplog.records if record.name == "onceward.redis"
    ]


async def wait_until_circuit_opens(only: Receiver, kind: str = "") -> None:
    """Wait until the warning is there, for a kind of failure."""

    async def warns() -> bool:
        return any(kind in warning for warning in only.ids.warnings)

    await eventually_async(warns, f"the circuit is open: {kind}")


async def wait_until_used(only: Receiver) -> None:
    """Wait until the warning is gone."""

    async def is_used() -> bool:
        return not only.ids.warnings and only.ids._is_connected

    await eventually_async(is_used, "Redis is used again")


async def check_promises(only: Receiver, prefix: str) -> None:
    """Record an event, a duplicate and a conflict, with the outcomes they must have."""
    batches = [[arrival(prefix)], [arrival(prefix)], [arrival(prefix, body=b"other")]]
    outcomes = [(await only.store.record(batch))[0].outcome for batch in batches]
    assert outcomes == [Outcome.RECORDED, Outcome.DUPLICATE, Outcome.CONFLICT]


async def test_a_killed_server_is_not_used_until_it_is_back(
    postgres_url: str, redis_server: RedisServer, lines: Lines
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        await check_promises(only, "before")
        redis_server.kill()
        await wait_until_circuit_opens(only, "it cannot be reached")
        await check_promises(only, "during")
        redis_server.start()
        await wait_until_used(only)
        await check_promises(only, "after")
        await only.wait_until_set()
        assert await unexplained(postgres_url, redis_server.url) == []
        assert list(await keys_of(postgres_url, redis_server.url)) == [
            redis_key(postgres_url, arrival("after"))
        ]
    opened, closed = lines()
    assert "is not used for now" in opened
    assert "is used again" in closed


async def test_a_frozen_server_delays_a_few_batches_by_milliseconds_and_then_none(
    postgres_url: str, redis_server: RedisServer, lines: Lines
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        redis_server.freeze()
        for _ in range(MAX_TIMEOUTS):
            assert not only.ids.warnings
            asked = only.ids.find("ledger", arrivals(200))
            assert set(await asyncio.wait_for(asked, FEW_MILLISECONDS)) == {None}
        await wait_until_circuit_opens(only, "it is too slow")
        await check_promises(only, "circuit open")
        redis_server.thaw()
        await wait_until_used(only)
    assert len(lines()) == 2


async def test_a_single_slow_reply_is_not_an_outage(
    postgres_url: str, redis_server: RedisServer, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_id_cache, "ASK_SECONDS", 0.05)  # the machine of the tests may be slow
    async with receiver(postgres_url, redis_server.url) as only:
        await only.record(arrival())
        redis_server.command(b"CLIENT", b"PAUSE", b"200")
        assert await only.ids.find("ledger", [arrival()]) == [None]

        async def replies() -> bool:
            await only.ids.find("ledger", [arrival()])
            return only.ids._breaker._timeouts == 0

        await asyncio.sleep(0.3)  # the pause itself is the subject
        await eventually_async(replies, "the connection is still in order")
        assert not only.ids.warnings
    assert lines() == []


async def test_a_full_server_is_not_used_until_it_has_room(
    postgres_url: str, redis_server: RedisServer, lines: Lines
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        redis_server.command(b"CONFIG", b"SET", b"maxmemory", b"1")
        await check_promises(only, "full")
        await wait_until_circuit_opens(only, "it replied OOM")
        await check_promises(only, "circuit open")
        redis_server.command(b"CONFIG", b"SET", b"maxmemory", b"0")
        await wait_until_used(only)
    assert len(lines()) == 2


async def test_a_replica_that_refuses_writes_is_not_used(
    postgres_url: str, redis_server: RedisServer, lines: Lines
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        redis_server.command(b"REPLICAOF", b"127.0.0.1", b"%d" % free_port())
        await check_promises(only, "replica")
        await wait_until_circuit_opens(only, "it replied READONLY")
        redis_server.command(b"REPLICAOF", b"NO", b"ONE")
        await wait_until_used(only)
    assert len(lines()) == 2


async def test_an_emptied_server_is_filled_again(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with (
        receiver(postgres_url, redis_server.url) as first,
        receiver(postgres_url, redis_server.url) as second,
    ):
        await first.record(arrival())
        redis_server.command(b"FLUSHALL")
        await check_promises(second, "other")
        (receipt,) = await second.record(arrival())
        assert receipt.outcome is Outcome.DUPLICATE
        assert len(await keys_of(postgres_url, redis_server.url)) == 2
        assert await unexplained(postgres_url, redis_server.url) == []


async def test_a_dump_from_before_a_deletion_brings_no_event_back(
    postgres_url: str, redis_server: RedisServer
) -> None:
    raw_db = RawDatabase(postgres_url)
    async with receiver(postgres_url, redis_server.url) as first:
        await first.record(arrival("kept"), arrival("deleted"))
        redis_server.command(b"SAVE")
        for table, column in (("jobs", "event"), ("payloads", "event"), ("events", "id")):
            raw_db.rows(
                f"DELETE FROM onceward.{table} WHERE {column} = "  # noqa: S608 - own names
                "(SELECT id FROM onceward.events WHERE event_id = 'deleted')"
            )
        redis_server.command(b"FLUSHALL")
    redis_server.kill()
    redis_server.options = ()
    redis_server.start()
    async with receiver(postgres_url, redis_server.url) as second:
        assert len(await unexplained(postgres_url, redis_server.url)) == 1
        outcomes = [
            receipt.outcome for receipt in await second.record(arrival("kept"), arrival("deleted"))
        ]
        assert outcomes == [Outcome.DUPLICATE, Outcome.RECORDED]
        assert raw_db.count("onceward.payloads") == 2
        assert await unexplained(postgres_url, redis_server.url) == []


async def test_a_password_is_sent_and_never_shown(postgres_url: str, lines: Lines) -> None:
    secret = "pässword"
    options = (*IN_MEMORY, "--requirepass", secret)
    with RedisServer(free_port(), *options) as server:
        address = f"127.0.0.1:{server.port}/0"
        for wrong, kind in (
            (f"redis://{address}", "it wants a password"),
            (f"redis://:wr0ng@{address}", "it refuses the user or the password"),
        ):
            async with receiver(postgres_url, wrong) as only:
                await wait_until_circuit_opens(only, f"Redis is not used: {kind}. ")
                await check_promises(only, wrong)
        async with receiver(postgres_url, f"redis://:p%C3%A4ssword@{address}") as only:
            assert not only.ids.warnings
            await check_promises(only, "right")
    missing, refused = lines()
    assert "it wants a password, and the URL has none (NOAUTH). Write it in redis, or in" in missing
    assert "the password (WRONGPASS). Check both in redis, or in ONCEWARD_REDIS" in refused
    assert not any("wr0ng" in line or secret in line for line in lines())
    assert all(address in line for line in lines())


async def test_a_password_or_a_privilege_that_does_not_fit_is_named(
    postgres_url: str, redis_server: RedisServer, lines: Lines
) -> None:
    redis_server.command(b"ACL", b"SETUSER", b"ann", b"on", b">word", b"~other:*", b"+@all")
    for user, advice in (
        (":wr0ng", "it has no password, and the URL has one. Remove it in redis, or in ONCEWARD"),
        ("ann:word", "lacks a privilege (NOPERM). Grant it: ACL SETUSER user ~onceward:* +set"),
    ):
        async with receiver(postgres_url, f"redis://{user}@127.0.0.1:{redis_server.port}") as only:
            await wait_until_circuit_opens(only)
        assert advice in lines()[-1]
    assert not any("wr0ng" in line for line in lines())


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_tls_to_a_redis_without_it_is_named(
    postgres_url: str, lines: Lines, monkeypatch: pytest.MonkeyPatch, *, hangs_up: bool
) -> None:
    """Redis waits for the end of the first command, unless the handshake has one by chance."""
    monkeypatch.setattr(redis_id_cache, "CONNECT_SECONDS", 0.3)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if not hangs_up:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with receiver(postgres_url, f"rediss://127.0.0.1:{port}") as only:
            await wait_until_circuit_opens(only, "it does not respond with TLS. ")
    assert f"Redis at rediss://127.0.0.1:{port}/0 is not used" in lines()[0]
    assert "If it has no TLS, write redis:// instead of rediss:// in redis" in lines()[0]


async def test_a_user_needs_only_the_documented_privileges(
    postgres_url: str, redis_server: RedisServer, lines: Lines
) -> None:
    page = (ROOT / "docs" / "redis.md").read_text()
    (rules,) = re.findall(r"`ACL SETUSER onceward (.*?)`", page)
    redis_server.command(b"ACL", b"SETUSER", b"onceward", *rules.encode().split())
    url = f"redis://onceward:password@127.0.0.1:{redis_server.port}"
    async with receiver(postgres_url, url) as only:
        await only.record(arrival())
        assert len(await keys_of(postgres_url, redis_server.url)) == 1
    assert lines() == []


@asynccontextmanager
async def peer(response: bytes) -> AsyncIterator[str]:
    """Run a server that is not Redis, and yield its URL."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(response)
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "response",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"+OK\r\n" * 9, b"$99999999\r\n" + bytes(1 << 21)],
    ids=["http", "silent", "too many replies", "endless"],
)
async def test_a_peer_that_is_not_redis_is_not_used(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, response: bytes
) -> None:
    monkeypatch.setattr(redis_id_cache, "CONNECT_SECONDS", 0.2)
    async with peer(response) as url, receiver(postgres_url, url) as only:
        await wait_until_circuit_opens(only)
        await check_promises(only, "not Redis")


async def test_a_huge_value_of_somebody_else_is_not_read(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        key = redis_key(postgres_url, arrival())
        redis_server.command(b"SETRANGE", key, b"50000000", b"x")
        (receipt,) = await only.record(arrival())
        assert receipt.outcome is Outcome.RECORDED


async def test_keys_beyond_the_queue_are_dropped_and_counted(
    postgres_url: str, redis_server: RedisServer, lines: Lines
) -> None:
    async with receiver(postgres_url, redis_server.url) as only:
        recorded = [
            RecordedDelivery(each, number)
            for number, each in enumerate(arrivals(MAX_QUEUED_EVENTS + 5), 1)
        ]
        only.ids.add("ledger", recorded)
        only.ids.add("ledger", recorded[:2])
        assert len(only.ids._queue) == MAX_QUEUED_EVENTS
        await only.wait_until_set()

        async def is_logged() -> bool:
            return bool(lines())

        await eventually_async(is_logged, "the drop is logged")
    (line,) = lines()
    assert f"dropped {5 + 2}" in line
    assert urlsplit(redis_server.url).netloc in line
