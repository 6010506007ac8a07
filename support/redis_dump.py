"""The keys of one ledger in Redis, for checks and for people who look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from onceward.accelerators.redis.address import RedisAddress
from onceward.accelerators.redis.connection import (
    RedisConnection,
    connect,
    encode,
    raise_error,
)
from onceward.accelerators.redis.keys import event_key, key_prefix

_SECONDS: Final = 10.0
_SCAN_EVENTS: Final = 1_000
_MAX_ITEMS: Final = 100_000  # COUNT is a hint to Redis, not a limit


class LedgerEvent(NamedTuple):
    """The columns of an event from which its key follows."""

    id: int
    source: str
    event_id: str
    body_sha256: bytes


async def dump_keys(address: RedisAddress, ledger: str) -> dict[bytes, bytes | None]:
    """Return all keys under a ledger's prefix, with their values; None if it is not a text."""
    connection = await connect(address, _SECONDS, lambda: None)
    found: dict[bytes, bytes | None] = {}
    pattern, cursor = key_prefix(ledger) + b"*", b"0"
    try:
        while True:
            scan = encode(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _SCAN_EVENTS)
            cursor, keys = await _list_reply(connection, scan)
            if keys:
                values = await _list_reply(connection, encode(b"MGET", *keys))
                found |= zip(keys, values, strict=True)
            if cursor == b"0":
                return found
    finally:
        connection.close()


async def _list_reply(connection: RedisConnection, command: bytes) -> list[Any]:
    replies = await connection.send([command], _SECONDS, max_items=_MAX_ITEMS)
    raise_error(replies)
    return cast("list[Any]", replies[0])


def unexplained_keys(
    keys: Mapping[bytes, bytes | None], ledger: str, events: Iterable[LedgerEvent]
) -> Iterator[str]:
    """Yield each key that no event of the ledger explains: by its source, id, hash and ledger id.

    A key is a digest, so that the keys of all events are computed and compared. An event without a
    key is no fault.
    """
    prefix = key_prefix(ledger)
    expected = {
        event_key(prefix, event.source, event.event_id, event.body_sha256): event.id
        for event in events
    }
    for key, value in keys.items():
        if key not in expected:
            yield f"{key!r} names no event of the ledger"
        elif value != b"%d" % expected[key]:
            yield f"{key!r} is {value!r}, but its event is {expected[key]}"
