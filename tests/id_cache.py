"""An open PostgreSQL store with an id cache in Redis, as one receiver has it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from onceward.accelerators.redis.address import parse_address
from onceward.accelerators.redis.id_cache import RedisIdCache
from onceward.accelerators.redis.keys import event_key, key_prefix
from onceward.model.events import Arrival, Receipt
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.settings import Settings
from onceward.store.postgres.id_hints import LEDGER_IDENTITY
from onceward.store.postgres.store import PostgresStore
from support.processes import eventually_async
from support.redis_dump import LedgerEvent, dump_keys, unexplained_keys
from tests.factories import HANDLERS, SOURCES

TTL_SECONDS: Mapping[str, float] = {"stripe": 3_600.0}


class Receiver:
    """One receiver: its store, and its memory in Redis."""

    def __init__(self, store: PostgresStore, ids: RedisIdCache) -> None:
        self.store = store
        self.ids = ids
        self.statements: list[str] = []
        """The statements of the store so far, by name."""
        queries, find_one = store._queries, store._queries.one

        def remember(name: str, *conditions: str) -> Sql:
            self.statements.append(name)
            return find_one(name, *conditions)

        queries.one = remember  # type: ignore[method-assign]

    async def record(self, *arrivals: Arrival) -> list[Receipt]:
        """Record deliveries in one batch, and wait until their keys are set or given up."""
        receipts = await self.store.record(arrivals)
        await self.wait_until_set()
        return receipts

    async def statements_for(self, *arrivals: Arrival) -> list[str]:
        """Record deliveries in one batch, and return the statements that it took."""
        self.statements.clear()
        await self.record(*arrivals)
        return [name for name in self.statements if name.startswith("record_")]

    async def wait_until_set(self) -> None:
        """Wait until no key waits to be set and none is under way."""

        async def is_idle() -> bool:
            connection = self.ids._write_connection
            return not self.ids._queue and not (connection and connection._pending)

        await asyncio.sleep(0)
        await eventually_async(is_idle, "the keys are set")


@asynccontextmanager
async def receiver(
    url: str, redis_url: str, *, failpoints: str = "", **settings: Any
) -> AsyncIterator[Receiver]:
    """Open a receiver. Several on one database are like several processes."""
    points = Failpoints(failpoints)
    ids = RedisIdCache(parse_address(redis_url), TTL_SECONDS, SystemClock(), points)
    store = PostgresStore(Settings(database_url=url, **settings), points, ids)
    await store.open(serving=True)
    await ids.open()
    try:
        await store.register(SOURCES, HANDLERS, [])
        yield Receiver(store, ids)
    finally:
        await ids.close()
        await store.close()


def ledger_identity(url: str) -> str:
    """Return the name under which a ledger keeps its keys."""
    with psycopg.connect(url) as connection:
        row = connection.execute(LEDGER_IDENTITY).fetchone()
    assert row is not None
    return str(row[0])


async def keys_of(url: str, redis_url: str) -> dict[bytes, bytes | None]:
    """Return the keys of a ledger in Redis."""
    return await dump_keys(parse_address(redis_url), ledger_identity(url))


def redis_key(url: str, arrival: Arrival) -> bytes:
    """Return the key of a delivery's event."""
    prefix = key_prefix(ledger_identity(url))
    return event_key(prefix, arrival.source, arrival.event_id, arrival.body_sha256)


async def unexplained(url: str, redis_url: str) -> list[str]:
    """Return the keys that no event of the ledger explains."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT e.id, s.name, e.event_id, e.body_sha256 FROM onceward.events e"
            " JOIN onceward.sources s ON s.id = e.source"
        ).fetchall()
    keys = await keys_of(url, redis_url)
    return list(unexplained_keys(keys, ledger_identity(url), map(LedgerEvent._make, rows)))
