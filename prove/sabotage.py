"""Deliberate bugs. Each must turn the proof red: a proof that cannot fail proves nothing.

``PROVE_SABOTAGE`` in the environment selects one. The service's processes patch their own code at
startup; the product contains none of this.
"""

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from types import ModuleType
from typing import Any

import psycopg
from psycopg.sql import SQL

from onceward import Transaction, service
from onceward.model.effects import NotApplied
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.model.jobs import Fail
from onceward.model.weeks import Week
from onceward.operate import maintenance
from onceward.operate.archiving import archive_week
from onceward.operate.maintenance import Maintenance, Report
from onceward.receive.pending import Pending
from onceward.receive.recorder import Recorder
from onceward.runtime.clock import SystemClock
from onceward.store import payload_routes, queries
from onceward.store.postgres import claiming, partitions, pool, schema, time_limit
from onceward.store.postgres import store as postgres_store
from onceward.store.postgres.connections import Connection
from onceward.store.postgres.pool import ConnectionPool
from onceward.store.postgres.recording import BatchWriter
from onceward.store.postgres.session import SessionConnection
from onceward.store.postgres.store import PostgresStore
from onceward.store.sqlite.database_file import DatabaseFile
from onceward.work.claiming.scheduler import MAX_PREFETCH_JOBS, Scheduler
from onceward.work.forwarding import forward
from onceward.work.outside.calls import AttemptCalls
from onceward.work.payloads.decoders import msgspec_decoder
from onceward.work.running.staleness import VersionedJob
from onceward.work.running.transaction import UnitOfWork

VARIABLE = "PROVE_SABOTAGE"
SKEW_SECONDS = 60
PURGE_INTERVAL_SECONDS = 0.3
LATE_SECONDS = 3600.0
EARLY_SECONDS = 0.02
PAUSE_BEFORE_END_SECONDS = 0.2

_connection_options: dict[str, Any] = {"host": "127.0.0.1", "user": "postgres"}
"""How this process reaches its database; `prepare` adds the port and the name."""


class Sabotage(StrEnum):
    """A promise to break."""

    NONE = ""
    EARLY_RESPONSE = "early-response"
    """Respond 202 before the commit."""
    WEAK_SYNC = "weak-sync"
    """Let the database commit without syncing its disk; a power cut shows it."""
    NO_FENCE = "no-fence"
    """Settle a job whose lease another worker holds."""
    SETTLE_BY_ID = "settle-by-id"
    """Settle a job by its id alone, done or not, and take every lease for held."""
    NO_UNIQUE_KEY = "no-unique-key"
    """Record an id as often as it is received."""
    NO_TRANSACTION = "no-transaction"
    """Let handlers write outside their transaction."""
    WORKER_CLOCK = "worker-clock"
    """Let leases expire by a worker's clock that is slow."""
    DELETE_IDS = "delete-ids"
    """Purge done events together with their ids."""
    ALWAYS_READY = "always-ready"
    """Report readiness without a look at the database; a frozen host shows it."""
    NO_TIME_LIMIT = "no-time-limit"
    """Wait for a response of the database without a limit; a frozen host shows it."""
    LOCAL_COMMIT = "local-commit"
    """Do not wait for a synchronous standby; a failover shows it."""
    MEMORY_OF_IDS = "memory-of-ids"
    """Answer repeated ids from memory; a failover to an older ledger shows it."""
    STALE_ROUTES = "stale-routes"
    """Trust sources and routes after a reconnect; a failover to an older ledger shows it."""
    SHARED_SESSIONS = "shared-sessions"
    """Accept a pooler that gives each transaction another session."""
    LEAK_CONNECTIONS = "leak-connections"
    """Wait for something before a connection is given back; cancellations show it."""
    IGNORE_FILE = "ignore-file"
    """Write on when the SQLite file is gone."""
    NO_KEY_CHECK = "no-key-check"
    """Claim the jobs of a key without regard to each other."""
    NO_CAP = "no-cap"
    """Claim jobs beyond the concurrency of their handler."""
    NO_RATE = "no-rate"
    """Claim jobs beyond the rate of their handler."""
    IGNORE_PAUSE = "ignore-pause"
    """Claim the jobs of paused handlers and sources."""
    LOST_WAKE_UPS = "lost-wake-ups"
    """Leave the next job of a key parked when the key becomes free."""
    SLOW_RECLAIM = "slow-reclaim"
    """Wait until the leases of a dead worker expire."""
    NO_SHARES = "no-shares"
    """Run all jobs in the order of arrival: a slow handler takes every slot of a worker."""
    IGNORE_VERSIONS = "ignore-versions"
    """Apply events that are older than what their key has applied."""
    BLIND_CALLS = "blind-calls"
    """Repeat outside calls whose outcome is unknown."""
    LATE_CALLS = "late-calls"
    """Make outside calls after their deadline; a process that was frozen shows it."""
    FRESH_IDS = "fresh-ids"
    """Forward each attempt of an event under an id of its own."""
    DROP_UNARCHIVED = "drop-unarchived"
    """Drop payloads before their archive is verified."""
    EARLY_KEYS = "early-keys"
    """Set the keys of events in Redis before the commit."""
    DROP_NEEDED = "drop-needed"
    """Drop payloads that queued and failed jobs need."""
    FORGET_STATES = "forget-states"
    """Purge jobs without the state of their event."""
    FORGET_IN_BATCH = "forget-in-batch"
    """Settle all jobs of a batch but the last."""
    EARLY_ON_FAILED = "early-on-failed"
    """Commit what on_failed wrote before the job ends as failed."""
    IGNORE_FILTERS = "ignore-filters"
    """Create jobs for events that the filter of their handler rejects."""
    SKIP_UNREAD = "skip-unread"
    """Decode only what a model reads of a body, so that the rest may be no JSON."""
    NO_FLOORS = "no-floors"
    """Let claims read all that was settled since the oldest snapshot."""


def active_sabotage() -> Sabotage:
    """Return the sabotage that the environment selects."""
    return Sabotage(os.environ.get(VARIABLE, ""))


async def prepare(tx: Transaction) -> None:
    """Change the database at startup, where the sabotage needs it."""
    match active_sabotage():
        case Sabotage.NO_UNIQUE_KEY:
            await tx.execute("ALTER TABLE onceward.events DROP CONSTRAINT IF EXISTS events_once")
        case Sabotage.NO_TRANSACTION | Sabotage.DELETE_IDS:
            options = "SELECT current_setting('port') AS port, current_database() AS dbname"
            _connection_options.update(await tx.fetch_one(options) or {})


def writer_for(tx: Transaction) -> Any:
    """Return the handler's transaction, or a writer that bypasses it."""
    return _Autocommit() if active_sabotage() is Sabotage.NO_TRANSACTION else tx


def apply() -> None:
    """Patch this process."""
    if patch := _PATCHES.get(active_sabotage()):
        patch()


def _patch_statement(name: str, pattern: str, replacement: str, dialect: str = "postgres") -> None:
    """Change one statement of a store."""
    texts = queries._load(dialect)  # noqa: SLF001 - sabotage has no public entrance
    texts[name], count = re.subn(pattern, replacement, texts[name], flags=re.DOTALL)
    assert count == 1, f"the statement {name} has changed; adapt its sabotage"


def _respond_early(submit: Callable[..., Pending]) -> Callable[..., Pending]:
    def submit_without_waiting(recorder: Recorder, arrivals: Sequence[Arrival]) -> Pending:
        submit(recorder, arrivals)
        pending = Pending(arrivals)
        pending.set_result([Receipt(0, Outcome.RECORDED) for _ in arrivals])
        return pending

    return submit_without_waiting


def _remember_ids(submit: Callable[..., Pending]) -> Callable[..., Pending]:
    known: set[tuple[str, str]] = set()

    def submit_unless_known(recorder: Recorder, arrivals: Sequence[Arrival]) -> Pending:
        keys = {(arrival.source, arrival.event_id) for arrival in arrivals}
        if keys <= known:
            pending = Pending(arrivals)
            pending.set_result([Receipt(0, Outcome.DUPLICATE) for _ in arrivals])
            return pending
        known.update(keys)
        return submit(recorder, arrivals)

    return submit_unless_known


class _Autocommit:
    """Writes that commit immediately."""

    async def execute(self, sql: str, parameters: Mapping[str, Any]) -> None:
        _connection().execute(re.sub(r":(\w+)", r"%(\1)s", sql).encode(), parameters)


@cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(**_connection_options, autocommit=True)


async def _delete_done_events(_: Maintenance) -> None:
    """Stand in for the maintenance."""
    async with await psycopg.AsyncConnection.connect(**_connection_options) as connection:
        await connection.execute(
            "WITH purged AS (DELETE FROM onceward.jobs WHERE status = 'done' RETURNING event)"
            "DELETE FROM onceward.events WHERE id IN (SELECT event FROM purged)"
        )


def _remove_fence() -> None:
    """Remove the fence alone: the job must still be queued, and renewals report lost leases."""
    _patch_statement("settle_done", r"AND EXISTS \(SELECT 1 FROM fence\)", "")
    _patch_statement(
        "settle_done", r"AND id IN \(\s+SELECT leased.*?:token\s+\)", "", dialect="sqlite"
    )


def _settle_by_id() -> None:
    _remove_fence()
    _patch_statement("settle_done", r"AND [\w.]*texteq\(status, 'queued'\)", "")
    _patch_statement("renew", r"ARRAY\(SELECT token FROM renewed\)", ":tokens::text[]")


def _remove_unique_key() -> None:
    async def accept(_: object) -> None:
        """Stand in for the check of the keys at the start."""

    vars(postgres_store)["require_keys"] = accept
    _patch_statement("record_new", "ON CONFLICT ON CONSTRAINT events_once DO NOTHING", "")


def _slow_the_clock() -> None:
    slow_clock = f"clock_timestamp() - interval '{SKEW_SECONDS} seconds' +"
    for name in ("claim", "renew"):
        _patch_statement(name, r"clock_timestamp\(\) \+", slow_clock)


def _purge_ids() -> None:
    vars(service)["MAINTENANCE_INTERVAL_SECONDS"] = PURGE_INTERVAL_SECONDS
    Maintenance.run_if_elected = _delete_done_events  # type: ignore[method-assign,assignment] # the sabotage


def _commit_locally() -> None:
    record = BatchWriter.record

    async def record_locally(
        writer: BatchWriter, connection: Connection, arrivals: Sequence[Arrival], routes_file: int
    ) -> list[Receipt]:
        await connection.execute("SET synchronous_commit = local")
        return await record(writer, connection, arrivals, routes_file)

    BatchWriter.record = record_locally  # type: ignore[method-assign,assignment] # the sabotage


def _wrap_submit(wrap: Callable[[Callable[..., Pending]], Callable[..., Pending]]) -> None:
    Recorder.submit = wrap(Recorder.submit)  # type: ignore[method-assign] # the sabotage


def _be_always_ready() -> None:
    async def ready(_: object) -> None:
        """Stand in for the store's check of its database."""

    PostgresStore.ready = ready  # type: ignore[method-assign,assignment] # the sabotage


def _remove_time_limit() -> None:
    vars(time_limit)["shut_down"] = lambda _: None


def _trust_routes() -> None:
    async def trust(store: PostgresStore, connection: Connection) -> None:
        """Take the registration for complete, in the tables that are there."""
        file = await schema.routes_file(connection)
        store._routes_files[connection] = file  # noqa: SLF001 - what the check would have stored

    _replace(PostgresStore, "_restore_registration", trust)


def _accept_shared_sessions() -> None:
    async def accept(*_: object) -> bool:
        """Stand in for a check of a connection."""
        return True

    _replace(PostgresStore, "_check_pooler", accept)
    _replace(SessionConnection, "_has_session", accept)
    # A pool that drops the connection of each such error works again with the next one.
    _replace(pool, "OTHER_SESSION", ())


def _replace(owner: type | ModuleType, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner.__name__} has no {name}; adapt its sabotage"
    setattr(owner, name, value)


def _leak_connections() -> None:
    use = ConnectionPool.use
    lost: list[object] = []

    @asynccontextmanager
    async def use_and_wait(pool: ConnectionPool) -> AsyncIterator[Connection]:
        context = use(pool)
        lost.append(context)  # the garbage collector would give the connection back
        async with AsyncExitStack() as stack:
            connection = await context.__aenter__()
            try:
                yield connection
            finally:
                await asyncio.sleep(0)
                stack.push_async_exit(context)
                lost.remove(context)

    ConnectionPool.use = use_and_wait  # type: ignore[method-assign,assignment] # the sabotage


class _Lenient:
    decode_json = staticmethod(lambda _: None)


def _claim_any_of_a_key() -> None:
    check = r"ordering_key IS NOT NULL AND id NOT IN \(SELECT id FROM heads\)"
    _patch_statement("claim", check, "false")


def _remove_cap() -> None:
    cap = r"h\.concurrency - \(SELECT count\(\*\) FROM in_flight f WHERE f\.handler = h\.id\),"
    _patch_statement("claim", cap, "")


def _remove_rate() -> None:
    _patch_statement("claim", r",\s+floor\(.*?rate_interval_seconds\s+\)\s+\)\) ELSE", ")) ELSE")


def _ignore_pauses() -> None:
    _patch_statement("claim", r"CASE WHEN h\.paused_at IS NULL THEN", "CASE WHEN true THEN")
    _patch_statement("claim", r"sources WHERE paused_at IS NOT NULL", "sources WHERE false")


def _lose_wake_ups() -> None:
    _patch_statement("wake_keys", r"WHERE first\.parked", "WHERE false AND first.parked")


def _reclaim_late() -> None:
    vars(claiming)["GRACE_SECONDS"] = LATE_SECONDS


def _ignore_shares() -> None:
    """Run all jobs in the order of their events, and take every handler for a quick one."""

    def next_in_order(scheduler: Scheduler, _: float) -> str | None:
        queues = scheduler._queues  # noqa: SLF001 - the sabotage
        heads = {queue[0].job.event: name for name, queue in queues.items() if queue}
        return heads[min(heads)] if heads else None

    _replace(Scheduler, "_next_handler", next_in_order)
    _replace(Scheduler, "_slow", lambda *_: set())
    _replace(Scheduler, "_target", lambda *_: MAX_PREFETCH_JOBS)
    _patch_statement("claim", "ORDER BY turn, available_at, id LIMIT", "ORDER BY event LIMIT")


def _forget_floors() -> None:
    _replace(claiming.Claims, "_take_floors", lambda *_: claiming._Floors())  # noqa: SLF001


def _forget_in_batch() -> None:
    settle_all = UnitOfWork.settle_all

    async def settle_most(unit: UnitOfWork, leases: Mapping[str, Sequence[int]]) -> None:
        *others, (token, jobs) = leases.items()
        await settle_all(unit, {**dict(others), token: jobs[:-1] or jobs})

    _replace(UnitOfWork, "settle_all", settle_most)


def _commit_on_failed_early() -> None:
    async def settle_later(
        unit: UnitOfWork, token: str, job: int, failure: Fail, elapsed_seconds: float
    ) -> bool:
        await unit.commit()
        await asyncio.sleep(PAUSE_BEFORE_END_SECONDS)
        queue: PostgresStore = unit._begin.__self__  # type: ignore[attr-defined] # noqa: SLF001 - the sabotage
        return await queue.settle_error(token, job, failure, elapsed_seconds)

    _replace(UnitOfWork, "settle_failed", settle_later)


def _repeat_blindly() -> None:
    async def repeat(*_: object) -> NotApplied:
        """Stand in for the policy of an effect."""
        return NotApplied()

    _replace(AttemptCalls, "_decide", repeat)


def _forward_under_fresh_ids() -> None:
    _replace(forward, "message_id", lambda *_: f"fwd_{secrets.token_hex(12)}")


def _drop_unarchived() -> None:
    """Drop each week first, and archive what is left of it."""
    drop_week = Maintenance._drop_week  # noqa: SLF001 - the sabotage

    async def archive_nothing(*_: object, **__: object) -> None:
        """Stand in for the archiving before the drop."""

    async def drop_then_archive(
        self: Maintenance, week: Week, before: datetime, report: Report
    ) -> None:
        await drop_week(self, week, before, report)
        archive = self._archive()
        if archive is not None:
            await archive_week(self._store, archive, week)

    _replace(maintenance, "archive_week", archive_nothing)
    _replace(Maintenance, "_must_be_archived", property(lambda _: False))
    _replace(Maintenance, "_drop_week", drop_then_archive)


def _set_keys_early() -> None:
    """Guess the ids of new events, and set their keys before they are written."""
    record = BatchWriter.record

    async def record_late(
        writer: BatchWriter, connection: Connection, arrivals: Sequence[Arrival], routes_file: int
    ) -> list[Receipt]:
        next_id = "SELECT last_value + 1 AS id FROM onceward.ledger_ids"
        row = await (await connection.execute(next_id)).fetchone()
        first = row["id"] if row else 1
        hints = await writer._id_hints.find(  # noqa: SLF001 - the sabotage
            connection,
            routes_file,
            arrivals,
            writer._recent,  # noqa: SLF001 - the sabotage
        )
        guesses = [Receipt(first + at, Outcome.RECORDED) for at in range(len(arrivals))]
        writer._id_hints.add(hints, arrivals, guesses)  # noqa: SLF001 - the sabotage
        await asyncio.sleep(EARLY_SECONDS)
        return await record(writer, connection, arrivals, routes_file)

    BatchWriter.record = record_late  # type: ignore[method-assign,assignment] # the sabotage


def _drop_needed() -> None:
    nothing = SQL(
        "SELECT event FROM onceward.jobs WHERE false AND received_at BETWEEN {starts} AND {ends}"
    )
    _replace(partitions, "_NEEDED", nothing)
    for name in ("purge_payloads", "unneeded_payloads"):
        _patch_statement(name, r"j\.status IN \('queued', 'failed'\)", "false", "sqlite")


def _forget_states() -> None:
    states = r"CASE\s+WHEN final_state.*?END"
    for dialect in ("postgres", "sqlite"):
        _patch_statement("purge_jobs", states, "final_state", dialect)


_PATCHES: Mapping[Sabotage, Callable[[], None]] = {
    Sabotage.EARLY_RESPONSE: partial(_wrap_submit, _respond_early),
    Sabotage.NO_FENCE: _remove_fence,
    Sabotage.SETTLE_BY_ID: _settle_by_id,
    Sabotage.NO_UNIQUE_KEY: _remove_unique_key,
    Sabotage.WORKER_CLOCK: _slow_the_clock,
    Sabotage.DELETE_IDS: _purge_ids,
    Sabotage.ALWAYS_READY: _be_always_ready,
    Sabotage.NO_TIME_LIMIT: _remove_time_limit,
    Sabotage.LOCAL_COMMIT: _commit_locally,
    Sabotage.MEMORY_OF_IDS: partial(_wrap_submit, _remember_ids),
    Sabotage.STALE_ROUTES: _trust_routes,
    Sabotage.SHARED_SESSIONS: _accept_shared_sessions,
    Sabotage.LEAK_CONNECTIONS: _leak_connections,
    Sabotage.IGNORE_FILE: partial(_replace, DatabaseFile, "check", lambda _: None),
    Sabotage.NO_KEY_CHECK: _claim_any_of_a_key,
    Sabotage.NO_CAP: _remove_cap,
    Sabotage.NO_RATE: _remove_rate,
    Sabotage.IGNORE_PAUSE: _ignore_pauses,
    Sabotage.LOST_WAKE_UPS: _lose_wake_ups,
    Sabotage.SLOW_RECLAIM: _reclaim_late,
    Sabotage.NO_SHARES: _ignore_shares,
    Sabotage.IGNORE_VERSIONS: partial(_replace, VersionedJob, "_is_stale", lambda *_: False),
    Sabotage.IGNORE_FILTERS: partial(_replace, payload_routes, "passes", lambda *_: True),
    Sabotage.SKIP_UNREAD: partial(_replace, msgspec_decoder, "UNCHECKED", _Lenient),
    Sabotage.BLIND_CALLS: _repeat_blindly,
    Sabotage.FORGET_IN_BATCH: _forget_in_batch,
    Sabotage.EARLY_ON_FAILED: _commit_on_failed_early,
    Sabotage.LATE_CALLS: partial(_replace, SystemClock, "boottime", lambda _: 0.0),
    Sabotage.FRESH_IDS: _forward_under_fresh_ids,
    Sabotage.NO_FLOORS: _forget_floors,
    Sabotage.DROP_UNARCHIVED: _drop_unarchived,
    Sabotage.EARLY_KEYS: _set_keys_early,
    Sabotage.DROP_NEEDED: _drop_needed,
    Sabotage.FORGET_STATES: _forget_states,
}
