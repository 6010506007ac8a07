"""Store measurements in batches; keep a list of those that could not be stored."""

import msgspec

from onceward import Event, Inbox, PermanentError, Transaction

inbox = Inbox(max_attempts=3)


class Metric(msgspec.Struct):
    """What the handler needs of the payload."""

    sensor: str
    value: float


@inbox.at_start
async def tables(tx: Transaction) -> None:
    """Keep the measurements beside the ledger, so that one transaction covers both."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS metrics "
        "(event varchar(255) PRIMARY KEY, sensor text, value real)"
    )
    await tx.execute("CREATE TABLE IF NOT EXISTS unusable (event varchar(255), reason text)")


async def note(event: Event[Metric], tx: Transaction, error: Exception) -> None:
    """Commit with the end of the job as failed."""
    await tx.execute(
        "INSERT INTO unusable (event, reason) VALUES (:event, :reason)",
        {"event": event.id, "reason": str(error)},
    )


@inbox.on_batch("metric.*", max_events=100, on_failed=note)
async def store(events: list[Event[Metric]], tx: Transaction) -> None:
    """The rows of all events and the ends of their jobs commit together or not at all."""
    for event in events:
        if event.payload.value < 0:
            raise PermanentError(f"{event.payload.sensor} measured less than nothing")
        await tx.execute(
            "INSERT INTO metrics (event, sensor, value) VALUES (:event, :sensor, :value)",
            {"event": event.id, "sensor": event.payload.sensor, "value": event.payload.value},
        )
