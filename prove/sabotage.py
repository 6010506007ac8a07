"""Deliberate bugs. Each must turn the proof red: a proof that cannot fail proves nothing.

``PROVE_SABOTAGE`` in the environment selects one. The service's processes patch their own code at
startup; the product contains none of this.
"""

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import psycopg

from onceward import Transaction, service
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.receive.pending import Pending
from onceward.receive.recorder import Recorder
from onceward.store import queries
from onceward.store.postgres.store import PostgresStore

VARIABLE = "PROVE_SABOTAGE"
SKEW_SECONDS = 60
PURGE_INTERVAL_SECONDS = 0.3

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
    """Settle a job by its id alone, without its lease."""
    NO_UNIQUE_KEY = "no-unique-key"
    """Record an id as often as it is received."""
    NO_TRANSACTION = "no-transaction"
    """Let handlers write outside their transaction."""
    WORKER_CLOCK = "worker-clock"
    """Let leases expire by a worker's clock that is slow."""
    DELETE_IDS = "delete-ids"
    """Purge done events together with their ids."""


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
    match active_sabotage():
        case Sabotage.EARLY_RESPONSE:
            Recorder.submit = _respond_early(Recorder.submit)  # type: ignore[method-assign] # the sabotage
        case Sabotage.NO_FENCE:
            _patch_statement(
                "settle_done", r"AND status .*'queued'\s+AND EXISTS \(SELECT 1 FROM fence\)", ""
            )
            _patch_statement(
                "renew", "UPDATE onceward.leases", "WITH mine AS (UPDATE onceward.leases"
            )
            _patch_statement(
                "renew", "RETURNING token", ") SELECT unnest(:tokens::text[]) AS token"
            )
        case Sabotage.NO_UNIQUE_KEY:
            _patch_statement("record_new", "ON CONFLICT ON CONSTRAINT events_once DO NOTHING", "")
        case Sabotage.WORKER_CLOCK:
            slow_clock = f"clock_timestamp() - interval '{SKEW_SECONDS} seconds' +"
            for name in ("claim", "renew"):
                _patch_statement(name, r"clock_timestamp\(\) \+", slow_clock)
        case Sabotage.DELETE_IDS:
            vars(service)["MAINTENANCE_INTERVAL_SECONDS"] = PURGE_INTERVAL_SECONDS
            PostgresStore.maintenance = _delete_done_events  # type: ignore[method-assign,assignment] # the sabotage


def _patch_statement(name: str, pattern: str, replacement: str) -> None:
    """Change one statement of the PostgreSQL store."""
    texts = queries._load("postgres")  # noqa: SLF001 - sabotage has no public entrance
    texts[name], count = re.subn(pattern, replacement, texts[name])
    assert count == 1, f"the statement {name} has changed; adapt its sabotage"


def _respond_early(submit: Callable[..., Pending]) -> Callable[..., Pending]:
    def submit_without_waiting(recorder: Recorder, arrivals: Sequence[Arrival]) -> Pending:
        submit(recorder, arrivals)
        pending = Pending(arrivals)
        pending.set_result([Receipt(0, Outcome.RECORDED) for _ in arrivals])
        return pending

    return submit_without_waiting


class _Autocommit:
    """Writes that commit immediately."""

    async def execute(self, sql: str, parameters: Mapping[str, Any]) -> None:
        _connection().execute(re.sub(r":(\w+)", r"%(\1)s", sql).encode(), parameters)


@functools.cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(**_connection_options, autocommit=True)


async def _delete_done_events(_: PostgresStore) -> None:
    """Stand in for the store's maintenance."""
    async with await psycopg.AsyncConnection.connect(**_connection_options) as connection:
        await connection.execute(
            "WITH purged AS (DELETE FROM onceward.jobs WHERE status = 'done' RETURNING event)"
            "DELETE FROM onceward.events WHERE id IN (SELECT event FROM purged)"
        )
