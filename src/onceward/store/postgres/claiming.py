"""Claims on PostgreSQL: one message that ends leases, reclaims and wakes jobs, and leases some."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from weakref import ref

from onceward.errors import StoreBlocked
from onceward.model.jobs import DIED_IN_ON_FAILED, WORKER_DIED, ClaimRequest
from onceward.ports import Row
from onceward.runtime.sql_text import parse
from onceward.settings import Settings
from onceward.store.base import ALTERED_ROWS, MIN_LOOK_JOBS, RATE_BURST_SECONDS
from onceward.store.locks import PRESENCE_NAMESPACE, Lock
from onceward.store.postgres.connections import Connection, lock_statement
from onceward.store.postgres.prepared import PreparedMessage
from onceward.store.queries import Queries

LATE_SECONDS: Final = 2.0
"""How far a floor stays behind the present, for jobs whose transactions commit late."""

FULL_LOOK_SECONDS: Final = 15.0
"""Interval of claims without floors. They find jobs that were committed later still."""

GRACE_SECONDS: Final = 2.0
"""Time for a live worker that lost its session to take its lock again."""

WATCH_SECONDS: Final = 1.0
"""Interval at which an idle worker looks whether others that hold leases have died."""

_LOCK_CLAIMS: Final = parse(lock_statement(Lock.CLAIMS))[0]
_NO_FLOOR: Final = datetime(1, 1, 1, tzinfo=UTC)


class _Floors:
    """Times before which the handlers have no due jobs, and the oldest lease that is alive.

    In memory, because a table of them would itself be full of dead rows.
    """

    def __init__(self) -> None:
        self.fresh: dict[int, datetime] = {}
        self.retried: dict[int, datetime] = {}
        self.lease = 0


class Claims:
    """The claims of one process."""

    def __init__(self, queries: Queries, settings: Settings) -> None:
        self._constants = {
            "error": WORKER_DIED,
            "died_again": DIED_IN_ON_FAILED,
            "base_seconds": settings.retry_base_seconds,
            "max_seconds": settings.retry_max_seconds,
            "grace_seconds": GRACE_SECONDS,
            "watch_seconds": WATCH_SECONDS,
            "namespace": PRESENCE_NAMESPACE,
            "burst_seconds": RATE_BURST_SECONDS,
            "min_look": MIN_LOOK_JOBS,
            "late_seconds": LATE_SECONDS,
        }
        ends = [_LOCK_CLAIMS, *queries("end_leases")]
        self._end = PreparedMessage("end", [*ends, *queries("wake_keys")])
        reclaims = [*queries("reclaim"), *queries("wake_keys")]
        claims = [*queries("claim"), *queries("next_due")]
        self._claim = PreparedMessage("claim", [*ends, *claims])
        self._reclaim_and_claim = PreparedMessage("reclaim", [*ends, *reclaims, *claims])
        self._floors = _Floors()
        self._full_look_at = -math.inf
        self._connection: ref[Connection] | None = None
        """The connection of the last claim."""

    async def claim(
        self, connection: Connection, request: ClaimRequest, handler_ids: Mapping[str, int]
    ) -> tuple[Row, Row]:
        """Run a claim. Return the row of the lease and the row of what is due next."""
        floors = self._take_floors(connection)
        wanted = {handler_ids[name]: number for name, number in request.wanted.items()}
        parameters: dict[str, Any] = {
            **self._constants,
            "token": request.token,
            "worker": request.worker,
            "owner": request.owner,
            "limit": 1 if request.solo else request.limit,
            "solo": request.solo,
            "slots": request.slots,
            "lease_seconds": request.lease_seconds,
            "tokens": list(request.ended),
            "settled": list(request.settled),
            "handlers": list(wanted),
            "wanted": list(wanted.values()),
            "lease_floor": floors.lease,
            **_floor_arrays(wanted, _Floors() if request.solo else floors),
        }
        # Keys are woken by the same statements, for settled jobs and for lost ones.
        is_short = not (request.looks_for_lost or request.settled)
        message = self._claim if is_short else self._reclaim_and_claim
        *_, (leased,), (next_due,) = await message.run(connection, parameters)
        if leased["has_jobs"] and leased["jobs"] is None:
            raise StoreBlocked(ALTERED_ROWS.format(table="onceward.leases"))
        floors.lease = leased["lease_floor"]
        if wanted and not request.solo:  # the floors are those of jobs that need not run alone
            floors.fresh |= zip(wanted, leased["fresh_floors"], strict=True)
            floors.retried |= zip(wanted, leased["retried_floors"], strict=True)
        self._floors = floors
        return leased, next_due

    async def end(
        self, connection: Connection, tokens: Sequence[str], settled: Sequence[int]
    ) -> None:
        """Delete leases whose jobs are all settled, and wake the next jobs of the settled keys."""
        parameters = {"tokens": list(tokens), "settled": list(settled), "lease_floor": 0}
        await self._end.run(connection, parameters)

    def _take_floors(self, connection: Connection) -> _Floors:
        """Return the floors, or none for a full look.

        It is time for one, or the last claim failed: leases that it left behind may have jobs below
        the floors. Or the connection is new: it may lead to a ledger that went back.
        """
        floors, self._floors = self._floors, _Floors()
        now = asyncio.get_running_loop().time()
        is_new = self._connection is None or self._connection() is not connection
        if is_new or now - self._full_look_at >= FULL_LOOK_SECONDS:
            self._connection, self._full_look_at = ref(connection), now
            return self._floors
        return floors


def _floor_arrays(handlers: Iterable[int], floors: _Floors) -> dict[str, list[datetime]]:
    return {
        "fresh_floors": [floors.fresh.get(handler, _NO_FLOOR) for handler in handlers],
        "retried_floors": [floors.retried.get(handler, _NO_FLOOR) for handler in handlers],
    }
