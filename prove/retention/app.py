"""The inbox of the stage of retention. Its processes do the maintenance several times a second."""

import hashlib
import os
import random

import msgspec

from onceward import Effects, Event, Inbox, PermanentError, Transaction, service
from onceward.operate.maintenance import Maintenance, Report, ignore_step
from prove import sabotage
from prove.probe_tables import TABLES
from prove.retention import log

MAINTENANCE_SECONDS = 0.2
FLAKY_FAILURE_RATE = 0.5
DECLINE_RATE = 0.7

inbox = Inbox()


class Payment(msgspec.Struct):
    """The payload of an event."""

    account: str
    amount: int
    behaviour: str = ""
    key: str = ""


class TransientError(Exception):
    """A failure that a retry may resolve."""


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    """Create the tables that the checker reads. Each committed run has the hash of its body."""
    for statement in TABLES:
        await tx.execute(statement)
    await tx.execute("CREATE TABLE IF NOT EXISTS bodies (event varchar(255), sha256 varchar(64))")
    await sabotage.prepare(tx)


@inbox.on("payment.made")
async def credit(event: Event[Payment], tx: Transaction) -> None:
    """Book the amount, then fail if the event asks for it."""
    await _book(event, tx, is_first=None)


@inbox.on("payment.with_effect")
async def credit_once(event: Event[Payment], tx: Transaction, effects: Effects) -> None:
    """Book the amount under a key that two events share."""
    is_first = await effects.once(event.payload.key, reference=event.payload.account)
    await _book(event, tx, is_first=int(is_first))


async def _book(event: Event[Payment], tx: Transaction, *, is_first: int | None) -> None:
    await tx.execute(
        "INSERT INTO probes (event, worker, is_first) VALUES (:event, :worker, :is_first)",
        {"event": event.id, "worker": os.getpid(), "is_first": is_first},
    )
    await tx.execute(
        "INSERT INTO bodies (event, sha256) VALUES (:event, :sha256)",
        {"event": event.id, "sha256": hashlib.sha256(event.body).hexdigest()},
    )
    await tx.execute(
        "INSERT INTO accounts (name, balance) VALUES (:name, :amount) "
        "ON CONFLICT (name) DO UPDATE SET balance = accounts.balance + :amount",
        {"name": event.payload.account, "amount": event.payload.amount},
    )
    match event.payload.behaviour:
        case "flaky" if random.random() < FLAKY_FAILURE_RATE:  # noqa: S311 - not a secret
            raise TransientError("try again")
        case "decline" if random.random() < DECLINE_RATE:  # noqa: S311 - not a secret
            raise PermanentError("declined")


def _log_maintenance() -> None:
    run, make_partitions = Maintenance.run, Maintenance._make_partitions  # noqa: SLF001 - the first step after the election

    async def logged_run(maintenance: Maintenance, report: Report = ignore_step) -> str:
        reason = "held back" if log.is_held_back() else await run(maintenance, report)
        log.write(log.LOST if reason else log.END)
        return reason

    async def logged_start(maintenance: Maintenance, report: Report) -> None:
        log.write(log.START)
        await make_partitions(maintenance, report)

    Maintenance.run = logged_run  # type: ignore[method-assign,assignment] # seen from outside
    Maintenance._make_partitions = logged_start  # type: ignore[method-assign,assignment] # noqa: SLF001 - seen from outside


vars(service)["MAINTENANCE_INTERVAL_SECONDS"] = MAINTENANCE_SECONDS
_log_maintenance()
sabotage.apply()
