"""The id cache in Redis: the recorded events that all receivers of a ledger share.

Nothing is decided by Redis alone: each hit is a hint that the ledger checks. Keys are set after the
commit, in the background. While Redis fails the circuit is open, and a background task tries Redis
again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from onceward.accelerators.breaker import Breaker
from onceward.accelerators.redis.address import RedisAddress
from onceward.accelerators.redis.connection import RedisConnection, connect, encode, raise_error
from onceward.accelerators.redis.failures import BAD_REPLIES, UnexpectedReply, describe
from onceward.accelerators.redis.keys import PROBE_KEY, event_key, key_prefix, parse_event
from onceward.accelerators.redis.replies import Reply, ReplyError
from onceward.model.events import Arrival
from onceward.ports.id_cache import RecordedDelivery
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.redis")

ASK_SECONDS: Final = 0.005
"""Time for Redis to answer a batch, which waits for it."""
SET_SECONDS: Final = 1.0
"""Time for Redis to set keys. Nothing waits for it."""
CONNECT_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 2.0
"""Pause after a failure."""
DAY_SECONDS: Final = 86_400
DEFAULT_TTL_SECONDS: Final = 30 * DAY_SECONDS
"""How long a key is kept if nothing is known about the sender."""
MAX_ASKED_EVENTS: Final = 10_000
"""The most keys that one batch asks for."""
MAX_QUEUED_EVENTS: Final = 10_000
"""The most keys that wait to be set; further ones are dropped."""
_MAX_SET_EVENTS: Final = 500
_DROPS_LOG_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 60
_CONSEQUENCE: Final = "Duplicates cost the database more; every promise holds"


class RedisIdCache:
    """The cache of one process's ledger, with two connections: to ask, and to set keys."""

    def __init__(
        self,
        address: RedisAddress,
        ttl_seconds: Mapping[str, float],
        clock: Clock,
        failpoints: Failpoints,
        *,
        max_ttl_seconds: float = math.inf,
    ) -> None:
        self._address = address
        self._ttls = {
            source: _ttl(min(seconds, max_ttl_seconds)) for source, seconds in ttl_seconds.items()
        }
        """How long a key is kept, by source, in seconds."""
        self._default_ttl = _ttl(min(DEFAULT_TTL_SECONDS, max_ttl_seconds))
        self._clock = clock
        self._failpoints = failpoints
        self._breaker = Breaker("Redis", str(address), _CONSEQUENCE, clock, _log)
        self._lookup_connection: RedisConnection | None = None
        self._write_connection: RedisConnection | None = None
        self._connected_at: float | None = None
        self._queue: deque[bytes] = deque()
        """Encoded commands that set one key each."""
        self._wake = asyncio.Event()
        self._dropped = 0
        self._drops_logged_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warning while the circuit is open, for everyone to see."""
        return self._breaker.warnings

    async def open(self) -> None:
        """Connect; after a failure, which is only logged, connect again in the background."""
        await self._reconnect()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Close the connections. Keys that wait are dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._disconnect()

    async def find(self, ledger: str, arrivals: Sequence[Arrival]) -> Sequence[int | None]:
        """Return, for each delivery, the event that it probably repeats, by the ledger's id."""
        if self._breaker.is_open:
            return [None] * len(arrivals)
        prefix = key_prefix(ledger)
        keys = [
            event_key(prefix, arrival.source, arrival.event_id, arrival.body_sha256)
            for arrival in arrivals[:MAX_ASKED_EVENTS]
        ]
        values = await self._ask(keys)
        events = [parse_event(value if isinstance(value, bytes) else None) for value in values]
        return events + [None] * (len(arrivals) - len(events))

    async def _ask(self, keys: Sequence[bytes]) -> list[Reply]:
        """Return the values of some keys, in one round trip; nothing if Redis fails."""
        connection = self._lookup_connection
        if connection is None:
            return []
        try:
            (reply,) = await connection.send(
                [encode(b"MGET", *keys)], ASK_SECONDS, max_items=len(keys)
            )
        except TimeoutError:
            if self._breaker.record_timeout():
                self._disconnect()
            return []
        except ConnectionError:
            return []  # the background task connects again
        if not isinstance(reply, list) or len(reply) != len(keys):
            # The connection may be out of step: the next reply would be that of another command.
            self._open_circuit(reply if isinstance(reply, ReplyError) else UnexpectedReply())
            return []
        self._breaker.record_success()
        return reply

    def add(self, ledger: str, recorded: Sequence[RecordedDelivery]) -> None:
        """Queue the keys of committed deliveries; drop those that the queue has no room for."""
        if self._breaker.is_open:
            return
        room = MAX_QUEUED_EVENTS - len(self._queue)
        self._dropped += max(0, len(recorded) - room)
        prefix = key_prefix(ledger)
        for arrival, event in recorded[:room]:
            key = event_key(prefix, arrival.source, arrival.event_id, arrival.body_sha256)
            seconds = self._ttls.get(arrival.source, self._default_ttl)
            self._queue.append(encode(b"SET", key, b"%d" % event, b"EX", seconds))
        self._wake.set()

    async def _run(self) -> None:
        """Set the keys that wait, and connect again after a failure."""
        while True:
            try:
                if self._is_connected:
                    await self._wake.wait()
                    self._wake.clear()
                    await self._set_queued()
                else:
                    await self._pause()
                    await self._reconnect()
            except Exception as error:  # noqa: BLE001 - nothing may end this task
                self._open_circuit(error)

    @property
    def _is_connected(self) -> bool:
        connections = self._lookup_connection, self._write_connection
        return all(connection is not None and connection.is_open for connection in connections)

    @property
    def _violation(self) -> str | None:
        connections = self._lookup_connection, self._write_connection
        return next((each.violation for each in connections if each and each.violation), None)

    async def _pause(self) -> None:
        """Wait after a failure. A connection that lasted is replaced at once."""
        since = self._connected_at
        if not self._breaker.is_open and since is not None:
            if violation := self._violation:
                self._breaker.open(BAD_REPLIES, violation)
            elif self._clock.monotonic() - since > RETRY_SECONDS:
                return
            else:
                self._breaker.open("it closes its connections", "it closed a new connection")
        self._queue.clear()
        await asyncio.sleep(RETRY_SECONDS)

    async def _reconnect(self) -> None:
        """Connect, and find out whether Redis accepts what is needed. Never raises."""
        self._disconnect()
        try:
            self._lookup_connection = await connect(self._address, CONNECT_SECONDS, self._wake.set)
            self._write_connection = await connect(self._address, CONNECT_SECONDS, self._wake.set)
            probe = [
                encode(b"SET", PROBE_KEY, b"1", b"EX", b"%d" % _PROBE_SECONDS),
                encode(b"MGET", PROBE_KEY, PROBE_KEY + b":other"),  # refused by a cluster
            ]
            raise_error(await self._write_connection.send(probe, CONNECT_SECONDS, max_items=2))
        except (OSError, ReplyError) as error:
            self._open_circuit(error)
        else:
            self._connected_at = self._clock.monotonic()
            self._breaker.close()

    async def _set_queued(self) -> None:
        """Set the keys that wait. The last step of a delivery, which was answered before."""
        while self._queue and self._write_connection is not None:
            count = min(len(self._queue), _MAX_SET_EVENTS)
            commands = [self._queue.popleft() for _ in range(count)]
            self._failpoints.reach("redis.setting")
            try:
                raise_error(await self._write_connection.send(commands, SET_SECONDS))
            except (TimeoutError, ReplyError) as error:
                self._open_circuit(error)
            except ConnectionError:
                return
        self._log_drops()

    def _log_drops(self) -> None:
        """Log, at most once a minute, that keys were dropped."""
        now = self._clock.monotonic()
        logged_at = self._drops_logged_at
        if self._dropped and (logged_at is None or now - logged_at > _DROPS_LOG_SECONDS):
            message = "Redis at %s sets keys too slowly: dropped %d. Their duplicates cost more."
            fields = LogFields(count=self._dropped)
            _log.warning(message, self._address, self._dropped, extra=fields)
            self._dropped, self._drops_logged_at = 0, now

    def _open_circuit(self, error: Exception) -> None:
        self._breaker.open(*describe(error, self._address))
        self._disconnect()

    def _disconnect(self) -> None:
        for connection in (self._lookup_connection, self._write_connection):
            if connection is not None:
                connection.close()
        self._lookup_connection = self._write_connection = None
        self._wake.set()


def _ttl(seconds: float) -> bytes:
    return b"%d" % max(1, round(seconds))
