"""An inbox with Redis: it starts without it, says so, and refuses a setting that cannot work."""

import asyncio
from contextlib import suppress

import httpx
import pytest

from onceward import Inbox
from onceward.accelerators.redis import id_cache as redis_id_cache
from onceward.errors import ConfigurationError
from support.database import RawDatabase
from support.postgres import free_port
from support.processes import APPS, Serve, eventually, eventually_async
from support.redis import IN_MEMORY, RedisServer
from tests.id_cache import keys_of, unexplained
from tests.inprocess import RunningInbox, receive_only

PAYMENT = {"account": "Ann", "amount": 1}
DAY_SECONDS = 86_400
RESPONSE_SECONDS = 1.0
"""The deadline of Redis, and what a busy machine adds."""
WARNING = "Redis is not used: it cannot be reached. Duplicates cost the database more"


async def redis_warnings(running: RunningInbox) -> list[str]:
    return [warning for warning in await running.warnings() if "Redis" in warning]


async def wait_for_warnings(running: RunningInbox, count: int) -> list[str]:
    """Wait until ``/readyz`` has so many warnings about Redis, and return them."""

    async def has_them() -> bool:
        return len(await redis_warnings(running)) == count

    await eventually_async(has_them, f"{count} warnings")
    return await redis_warnings(running)


async def test_an_inbox_starts_without_redis_and_warns_until_it_is_there(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_id_cache, "RETRY_SECONDS", 0.05)
    port = free_port()
    url = f"redis://:hidden-word@127.0.0.1:{port}"
    async with receive_only(Inbox(), postgres_url, redis=url) as running:
        (warning,) = await wait_for_warnings(running, 1)
        assert warning.startswith(WARNING)
        assert str(port) not in warning
        await running.post("payment.made", PAYMENT)
        with RedisServer(port, *IN_MEMORY, "--requirepass", "hidden-word"):
            assert await wait_for_warnings(running, 0) == []
        (warning,) = await wait_for_warnings(running, 1)
        await running.post("payment.made", PAYMENT)
    records = [record for record in caplog.records if record.name == "onceward.redis"]
    assert len(records) == 3
    assert all(f"redis://127.0.0.1:{port}/0" in record.getMessage() for record in records)
    assert "hidden-word" not in caplog.text
    assert RawDatabase(postgres_url).value("SELECT deliveries FROM onceward.events") == 2


@pytest.mark.parametrize(
    ("url", "reason"),
    [("redis", "the URL must be"), ("redis://cache/name", "not the number of a database")],
)
def test_a_malformed_url_is_refused_by_name(postgres_url: str, url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^redis: .*{reason}"):
        Inbox(postgres_url, redis=url).service()
    with pytest.raises(ConfigurationError, match=f"^redis: .*{reason}"):
        Inbox(postgres_url, redis=url).asgi()


def test_redis_beside_sqlite_is_refused_by_name(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^redis is set, but the ledger is SQLite"):
        Inbox(sqlite_url, redis="redis://cache").service()


@pytest.mark.parametrize(("window_days", "ingest_days"), [(0, 30), (10, 10), (60, 30)])
async def test_the_keys_of_a_source_last_as_long_as_its_provider_resends(
    postgres_url: str, redis_server: RedisServer, window_days: int, ingest_days: int
) -> None:
    inbox = Inbox()
    inbox.source("github", secrets=["a-secret-of-some-length"])
    settings = {"redis": redis_server.url, "dedupe_window_days": window_days}
    async with receive_only(inbox, postgres_url, **settings) as running:
        ids = running.service._id_cache
        assert ids is not None
        assert ids._ttls == {"github": b"%d" % (7 * DAY_SECONDS)}
        await running.post("payment.made", PAYMENT)

        async def is_set() -> bool:
            return b":2" in redis_server.command(b"DBSIZE")

        await eventually_async(is_set, "the key is set")
        (key,) = await keys_of(postgres_url, redis_server.url)
        left = int(redis_server.command(b"TTL", key).strip(b":\r\n"))
        assert ingest_days * DAY_SECONDS - 60 < left <= ingest_days * DAY_SECONDS


async def test_with_redis_frozen_every_response_is_a_202_in_time(
    postgres_url: str, redis_server: RedisServer
) -> None:
    async with receive_only(Inbox(), postgres_url, redis=redis_server.url) as running:
        redis_server.freeze()
        for number in range(10):
            post = running.post("payment.made", PAYMENT, f"evt_{number}")
            await asyncio.wait_for(post, RESPONSE_SECONDS)
        assert await redis_warnings(running) != []
    assert RawDatabase(postgres_url).count("onceward.events") == 10


@pytest.mark.parametrize("point", ["record.committed", "redis.setting"])
async def test_a_receiver_killed_between_the_commit_and_the_keys_loses_nothing(
    postgres_url: str, redis_server: RedisServer, point: str
) -> None:
    app = APPS / "probe.py"
    url = redis_server.url
    with Serve(app, postgres_url, failpoints=f"{point}:kill", redis=url, workers=0) as killed:
        with suppress(httpx.TransportError):  # the response may be lost
            killed.post("evt_1", "payment.made", PAYMENT)
        eventually(lambda: not killed.running, "the process is killed")
    assert RawDatabase(postgres_url).count("onceward.events") == 1
    assert await keys_of(postgres_url, redis_server.url) == {}
    with Serve(app, postgres_url, redis=url, workers=0) as service:
        receipt = service.accept("evt_1", "payment.made", PAYMENT)
        assert receipt["duplicate"]
        eventually(lambda: b":2" in redis_server.command(b"DBSIZE"), "the key is set")
    assert RawDatabase(postgres_url).count("onceward.events") == 1
    assert await unexplained(postgres_url, redis_server.url) == []
