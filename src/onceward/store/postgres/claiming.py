"""Claims on PostgreSQL: one message that ends leases, reclaims and wakes jobs, and leases some."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from weakref import ref

from onceward.errors import StoreBlocked
from onceward.model.jobs import DIED_IN_ON_FAILED, WORKER_DIED, ClaimRequest
from onceward.ports import Row
from onceward.runtime.sql_text import parse
from onceward.settings import Settings
from onceward.store.base import ALTERED_ROWS, MIN_LOOK_JOBS, RATE_BURST_SECONDS
from onceward.store.blamed_jobs import log_blamed
from onceward.store.locks import PRESENCE_NAMESPACE, Lock
from onceward.store.migrate import newest
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

_LOCK_CLAIMS: Final = parse(lock_statement(Lock.CLAIMS))
_STATEMENTS: Final = ("end_leases", "reclaim", "wake_keys", "claim", "next_due")
"""The statements of a claim, in their order, under the lock of claims."""
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
            "schema": newest("postgres").number,
        }
        self._claim = _message("claim", queries)
        self._end = _message("end", queries, without=("reclaim", "claim", "next_due"))
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
        rows = await self._claim.run(connection, parameters, without=_needless(request))
        log_blamed(rows.get("reclaim", ()))
        (leased,), (next_due,) = rows["claim"], rows["next_due"]
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


def _message(name: str, queries: Queries, without: Collection[str] = ()) -> PreparedMessage:
    statements = {each: queries(each) for each in _STATEMENTS if each not in without}
    return PreparedMessage(name, {"lock": _LOCK_CLAIMS, **statements})


def _needless(request: ClaimRequest) -> tuple[str, ...]:
    """Return the statements that a claim can do without. Keys are woken for lost jobs, too."""
    if request.looks_for_lost:
        return ()
    return ("reclaim",) if request.settled else ("reclaim", "wake_keys")


def _floor_arrays(handlers: Iterable[int], floors: _Floors) -> dict[str, list[datetime]]:
    return {
        "fresh_floors": [floors.fresh.get(handler, _NO_FLOOR) for handler in handlers],
        "retried_floors": [floors.retried.get(handler, _NO_FLOOR) for handler in handlers],
    }
