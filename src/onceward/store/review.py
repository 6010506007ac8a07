"""Operators' actions on events that no handler got, on both stores."""

from __future__ import annotations

from typing import Final

from onceward.errors import NotFound, NotInState, StoreBlocked
from onceward.model.admin import Dismissed, OperatorAction, RoutedEvent
from onceward.model.archive import EventKey
from onceward.model.events import ProcessingState
from onceward.model.weeks import Week
from onceward.ports import Row
from onceward.runtime.redact import printable
from onceward.store.archives import restore_advice
from onceward.store.audit import add_audit_entry
from onceward.store.base import ALTERED_ROWS, BaseStore, LedgerTransaction
from onceward.store.locks import Lock
from onceward.work.definition.ordering_keys import read_keys

_SHOWN_CHARACTERS: Final = 40
_HAS_JOB: Final = (
    "Event {event} has job {job} for handler {handler}, which is {status}. A job that failed, was "
    "ignored or was cancelled can be requeued."
)
_PURGED_JOBS: Final = (
    "The jobs of event {event} are purged, and one of them was done. Handler {handler} may have "
    "applied it."
)
_NO_PAYLOAD: Final = (
    "Event {event} cannot be routed: its payload was dropped from the ledger. {advice}"
)


class SqlReview(BaseStore):
    """The part of the port `AdminStore` that routes and dismisses events."""

    async def route_event(
        self, event: int, handler: str, action: OperatorAction
    ) -> RoutedEvent | None:
        """Create the job of an event for a handler, with an audit entry.

        Return None if the event is unknown, and raise NotFound if the handler is. Raise NotInState
        if the handler has a job for the event, or may have applied it, or if the payload is gone.
        """
        # Under the lock of the purge: the payload stays until the job protects it.
        async with self._transaction(Lock.LEDGER) as transaction:
            rows = await transaction.run("event_to_route", event=event)
            if not rows:
                return None
            known = await transaction.run("handler_to_route", name=handler)
            if not known:
                name = printable(handler[:_SHOWN_CHARACTERS])
                raise NotFound(f"There is no handler {name}. GET /admin/handlers lists them.")
            (found,) = known
            await _require_routable(transaction, event, handler, rows[0], found)
            key = _ordering_key(found["ordering_key"], rows[0])
            jobs = await transaction.run(
                "add_routed_job", event=event, handler=found["id"], ordering_key=key
            )
            if not jobs:
                raise StoreBlocked(ALTERED_ROWS.format(table="jobs"))
            await transaction.run("leave_review", event=event)
            job = jobs[0]
            entry = await add_audit_entry(transaction, action, "route", f"job:{job['id']}")
        return RoutedEvent(str(event), job["id"], job["available_at"], entry)

    async def dismiss(self, event: int, action: OperatorAction) -> Dismissed | None:
        """End the review of an event as ignored, with an audit entry.

        Return None if the event is unknown. Raise NotInState if it is not in review.
        """
        async with self._transaction(Lock.LEDGER) as transaction:
            rows = await transaction.run("dismiss", event=event)
            if not rows:
                if await transaction.run("event_to_route", event=event):
                    raise NotInState(f"Event {event} is not in review. Nothing was changed.")
                return None
            entry = await add_audit_entry(transaction, action, "dismiss", f"event:{event}")
        return Dismissed(str(event), rows[0]["processed_at"], entry)

    async def events_in_review(self, *, limit: int) -> int:
        """Return the number of events that wait for review, up to a limit."""
        (row,) = await self._read("events_in_review", limit=limit)
        return int(row["events"])


async def _require_routable(
    transaction: LedgerTransaction, event: int, name: str, row: Row, handler: Row
) -> None:
    """Raise NotInState if an event cannot have a new job for a handler."""
    jobs = await transaction.run("job_of_handler", event=event, handler=handler["id"])
    if jobs:
        job, status = jobs[0]["id"], jobs[0]["status"]
        raise NotInState(_HAS_JOB.format(event=event, job=job, handler=name, status=status))
    if row["final_state"] == ProcessingState.SUCCEEDED:
        raise NotInState(_PURGED_JOBS.format(event=event, handler=name))
    if row["body"] is None:
        key, week = EventKey(row["source"], row["event_id"]), Week.of(row["received_at"])
        advice = await restore_advice(transaction, event, key, week, then="route")
        raise NotInState(_NO_PAYLOAD.format(event=event, advice=advice))


def _ordering_key(path: str | None, row: Row) -> str | None:
    """Return the key that the job would have if the handler had wanted the event at first."""
    if path is None:
        return None
    return read_keys(row["source"], bytes(row["headers"]), bytes(row["body"]), [path])[0]
