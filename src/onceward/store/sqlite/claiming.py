"""Claims on SQLite: one transaction that ends leases, reclaims and wakes jobs, and leases some."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from onceward.errors import StoreBlocked
from onceward.model.jobs import DIED_IN_ON_FAILED, WORKER_DIED, Claim, ClaimRequest, Job, Lease
from onceward.settings import Settings
from onceward.store.base import (
    ALTERED_ROWS,
    MIN_LOOK_JOBS,
    RATE_BURST_SECONDS,
    inline_body_bytes,
)
from onceward.store.blamed_jobs import log_blamed
from onceward.store.queries import Queries
from onceward.store.sqlite.connection_thread import run
from onceward.store.sqlite.schema import require_known_schema

_END_OF_TIME: Final = 2**62
_CHOSEN: Final = "SELECT 1 FROM temp.onceward_chosen LIMIT 1"
_PARKED: Final = "SELECT 1 FROM temp.onceward_seen WHERE is_blocked LIMIT 1"


class Claims:
    """The claims of one process, in the transaction of the caller."""

    def __init__(self, queries: Queries, settings: Settings) -> None:
        self._queries = queries
        self._reclaim = {
            "error": WORKER_DIED,
            "died_again": DIED_IN_ON_FAILED,
            "base_seconds": settings.retry_base_seconds,
            "max_seconds": settings.retry_max_seconds,
        }

    def claim(
        self,
        connection: sqlite3.Connection,
        request: ClaimRequest,
        handler_ids: Mapping[str, int],
        now: int,
    ) -> Claim:
        """Lease due jobs. End the leases that are over first, and reclaim lost ones if asked to.

        Raise NewerSchema.
        """
        require_known_schema(connection)
        wanted = {handler_ids[name]: number for name, number in request.wanted.items()}
        values = {
            **self._reclaim,
            "now": now,
            "expired_before": now,
            "token": request.token,
            "worker": request.worker,
            "handlers": json.dumps(list(wanted)),
            "wanted": json.dumps(list(wanted.items())),
            "limit": 1 if request.solo else request.limit,
            "look": max([MIN_LOOK_JOBS, *wanted.values()]),
            "solo": request.solo,
            "slots": request.slots,
            "lease_seconds": request.lease_seconds,
            "burst_seconds": RATE_BURST_SECONDS,
            "tokens": json.dumps(list(request.ended)),
            "settled": json.dumps(list(request.settled)),
        }
        # Leases that ended must not be reclaimed: their jobs would be blamed.
        self._run(connection, values, "end_leases")
        if request.looks_for_lost:
            self._reclaim_expired(connection, values)
        if request.looks_for_lost or request.settled:
            self._run(connection, values, "wake_keys")
        leased = run(connection, self._queries("claim"), values)
        if not leased and connection.execute(_CHOSEN).fetchone():
            raise StoreBlocked(ALTERED_ROWS.format(table="onceward_leases"))
        (next_due,) = run(connection, self._queries("next_due"), values)
        has_parked = connection.execute(_PARKED).fetchone()
        jobs = self._load(connection, leased[0]["jobs"]) if leased else ()
        return Claim(
            lease=Lease(request.token, jobs) if jobs else None,
            solo_waiting=bool(next_due["solo_waiting"]),
            # Behind the jobs that were parked, others may be due.
            next_due_seconds=0.0 if has_parked else next_due["next_due_seconds"],
        )

    def end(
        self,
        connection: sqlite3.Connection,
        tokens: Sequence[str],
        settled: Sequence[int],
        now: int,
    ) -> None:
        """Delete leases whose jobs are all settled, and wake the next jobs of the settled keys."""
        values = {
            "now": now,
            "tokens": json.dumps(list(tokens)),
            "settled": json.dumps(list(settled)),
        }
        self._run(connection, values, "end_leases", "wake_keys")

    def reclaim_all(self, connection: sqlite3.Connection, now: int) -> None:
        """Reclaim every lease."""
        values = {**self._reclaim, "now": now, "expired_before": _END_OF_TIME, "settled": "[]"}
        self._reclaim_expired(connection, values)
        self._run(connection, values, "wake_keys")

    def _reclaim_expired(self, connection: sqlite3.Connection, values: Mapping[str, Any]) -> None:
        log_blamed(run(connection, self._queries("reclaim"), values))

    def _load(self, connection: sqlite3.Connection, jobs: str) -> tuple[Job, ...]:
        inline_bytes = inline_body_bytes(len(json.loads(jobs)))
        values = {"jobs": jobs, "inline_bytes": inline_bytes}
        return tuple(Job(**row) for row in run(connection, self._queries("load_jobs"), values))

    def _run(self, connection: sqlite3.Connection, values: Mapping[str, Any], *names: str) -> None:
        for name in names:
            run(connection, self._queries(name), values)
