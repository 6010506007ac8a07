"""Ways to break a promise on purpose. Each must turn the proof red, or the proof is worth nothing.

``PROVE_SABOTAGE`` in the environment names one. The processes of the service read it and change
their own code as they start; nothing of it is in the product.
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

CHOICE = "PROVE_SABOTAGE"
SKEW_SECONDS = 60
PURGE_EVERY_SECONDS = 0.3

_place: dict[str, Any] = {"host": "127.0.0.1", "user": "postgres"}
"""Where the database of this process is."""


class Sabotage(StrEnum):
    """What is broken."""

    NONE = ""
    EARLY_ANSWER = "early-answer"
    """A 202 goes out before the commit."""
    WEAK_SYNC = "weak-sync"
    """The database does not wait for its disk: what a power cut shows."""
    NO_FENCE = "no-fence"
    """A job is settled by its id alone, whoever holds its lease."""
    NO_UNIQUE_KEY = "no-unique-key"
    """The ledger takes an id as often as it comes."""
    OUTSIDE = "outside"
    """Handlers write beside their transaction."""
    WORKER_CLOCK = "worker-clock"
    """Leases end by the clock of their worker, which is slow."""
    FORGETFUL_PURGE = "forgetful-purge"
    """What is done is deleted, with its id."""


def chosen() -> Sabotage:
    """What this process is to break."""
    return Sabotage(os.environ.get(CHOICE, ""))


async def prepare(tx: Transaction) -> None:
    """What to do to the database at start."""
    match chosen():
        case Sabotage.NO_UNIQUE_KEY:
            await tx.execute("ALTER TABLE onceward.events DROP CONSTRAINT IF EXISTS events_once")
        case Sabotage.OUTSIDE | Sabotage.FORGETFUL_PURGE:
            place = "SELECT current_setting('port') AS port, current_database() AS dbname"
            _place.update(await tx.fetch_one(place) or {})


def outside(tx: Transaction) -> Any:
    """The transaction, or a way around it."""
    return _Beside() if chosen() is Sabotage.OUTSIDE else tx


def apply() -> None:
    """Break it."""
    match chosen():
        case Sabotage.EARLY_ANSWER:
            Recorder.submit = _answer_early(Recorder.submit)  # type: ignore[method-assign] # the sabotage
        case Sabotage.NO_FENCE:
            _replace(
                "settle_done", r"AND status .*'queued'\s+AND EXISTS \(SELECT 1 FROM fence\)", ""
            )
            _replace("renew", "UPDATE onceward.leases", "WITH mine AS (UPDATE onceward.leases")
            _replace("renew", "RETURNING token", ") SELECT unnest(:tokens::text[]) AS token")
        case Sabotage.NO_UNIQUE_KEY:
            _replace("record_new", "ON CONFLICT ON CONSTRAINT events_once DO NOTHING", "")
        case Sabotage.WORKER_CLOCK:
            late = f"clock_timestamp() - interval '{SKEW_SECONDS} seconds' +"
            for name in ("claim", "renew"):
                _replace(name, r"clock_timestamp\(\) \+", late)
        case Sabotage.FORGETFUL_PURGE:
            vars(service)["STORE_EVERY_SECONDS"] = PURGE_EVERY_SECONDS
            PostgresStore.maintenance = _forget  # type: ignore[method-assign,assignment] # the sabotage


def _replace(name: str, pattern: str, by: str) -> None:
    """Change a statement of the store on PostgreSQL."""
    texts = queries._load("postgres")  # noqa: SLF001 - a saboteur comes in by the window
    texts[name], count = re.subn(pattern, by, texts[name])
    assert count == 1, f"{name} has changed; change its sabotage as well"


def _answer_early(submit: Callable[..., Pending]) -> Callable[..., Pending]:
    def submit_and_forget(recorder: Recorder, arrivals: Sequence[Arrival]) -> Pending:
        submit(recorder, arrivals)
        pending = Pending(arrivals)
        pending.set_result([Receipt(0, Outcome.RECORDED) for _ in arrivals])
        return pending

    return submit_and_forget


class _Beside:
    """Writes that commit by themselves."""

    async def execute(self, sql: str, parameters: Mapping[str, Any]) -> None:
        _connection().execute(re.sub(r":(\w+)", r"%(\1)s", sql).encode(), parameters)


@functools.cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(**_place, autocommit=True)


async def _forget(_: PostgresStore) -> None:
    """A purge that takes the ids along."""
    async with await psycopg.AsyncConnection.connect(**_place) as connection:
        await connection.execute(
            "WITH gone AS (DELETE FROM onceward.jobs WHERE status = 'done' RETURNING event)"
            "DELETE FROM onceward.events WHERE id IN (SELECT event FROM gone)"
        )
