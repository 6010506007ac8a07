"""The inbox of the stage of versions: each event sets the state of its object."""

import random

import msgspec

from onceward import Event, Inbox, Transaction
from prove import sabotage

FLAKY_SHARE = 0.2

inbox = Inbox()


class Change(msgspec.Struct):
    """The payload of an event."""

    object: str
    version: int


class TransientError(Exception):
    """A failure that a retry may resolve."""


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    """Create the state of each object, and a log of the changes that were committed."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS objects "
        "(name varchar(255) PRIMARY KEY, version bigint, event varchar(255))"
    )
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS changes (name varchar(255), version bigint, event varchar(255))"
    )


@inbox.on("object.changed", version="version", version_key="object")
async def change(event: Event[Change], tx: Transaction) -> None:
    """Overwrite the object: without versions, the last one to arrive would win."""
    values = {"name": event.payload.object, "version": event.payload.version, "event": event.id}
    await tx.execute("INSERT INTO changes VALUES (:name, :version, :event)", values)
    await tx.execute(
        "INSERT INTO objects VALUES (:name, :version, :event) "
        "ON CONFLICT (name) DO UPDATE SET version = :version, event = :event",
        values,
    )
    if random.random() < FLAKY_SHARE:  # noqa: S311 - not a secret
        raise TransientError("try again")


sabotage.apply()
