"""Recording a batch on PostgreSQL: what is new, and what has been seen before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from psycopg.rows import tuple_row

from onceward.errors import OutcomeUnknown
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.store.base import HELD_AS_DUPLICATE_BODY, Run
from onceward.store.postgres.arrays import bigints, blobs, ints, texts
from onceward.store.postgres.connections import RETRYABLE, Connection
from onceward.store.queries import Queries
from onceward.store.recent_events import RecentEvents

_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
_RETRIES: Final = 5
_NEW: Final = "record_new"
_KNOWN: Final = "record_known"
_AGAIN: Final = "record_again"


class _Batch:
    """Deliveries, by their places, on the way to their receipts."""

    def __init__(self, arrivals: Sequence[Arrival], recent: RecentEvents) -> None:
        self.arrivals = arrivals
        self.known: dict[int, list[int]] = {}  # the places of what repeats an event, by its id
        self._repeated: set[int] = set()
        self._receipts: dict[int, Receipt] = {}
        among: dict[tuple[str, str], bytes] = {}
        for place, arrival in enumerate(arrivals):
            if event := recent.event(arrival):
                self.known.setdefault(event, []).append(place)
                self._repeated.add(place)
                continue
            first = among.setdefault((arrival.source, arrival.event_id), arrival.body_sha256)
            if first is not arrival.body_sha256 and first == arrival.body_sha256:
                self._repeated.add(place)

    @property
    def others(self) -> list[int]:
        """Those that seem to repeat nothing: no event, and none of these."""
        return [place for place in range(len(self.arrivals)) if place not in self._repeated]

    @property
    def unanswered(self) -> list[int]:
        """Those without a receipt."""
        return [place for place in range(len(self.arrivals)) if place not in self._receipts]

    def body(self, place: int) -> bytes | None:
        """The body, where the ledger may need it: it has that of an event that is repeated."""
        return None if place in self._repeated else self.arrivals[place].body

    def repeat_none(self) -> None:
        """What was thought to be repeated is not."""
        self._repeated = set()

    def answer(self, place: int, receipt: Receipt) -> None:
        """Keep a receipt."""
        self._receipts[place] = receipt

    def receipts(self) -> list[Receipt]:
        """All of them, in order of arrival. Raises OutcomeUnknown when one is missing."""
        if self.unanswered:
            message = "the ledger neither took nor knew an event"
            raise OutcomeUnknown(message)
        return [self._receipts[place] for place in range(len(self.arrivals))]


class Recording:
    """Writes batches, and remembers the last events to know their repetitions."""

    def __init__(
        self,
        queries: Queries,
        source_ids: Mapping[str, int],
        failpoints: Failpoints,
        *,
        row_limit: int,
    ) -> None:
        self._queries = queries
        self._source_ids = source_ids
        self._failpoints = failpoints
        self._row_limit = row_limit
        self._recent = RecentEvents()

    def batch_group(self, arrival: Arrival) -> bool:
        """Whether it repeats one of the last events."""
        return self._recent.event(arrival) is not None

    async def record(self, connection: Connection, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Write all of them durably, each event once; one answer each, in their order."""
        batch = _Batch(arrivals, self._recent)
        self._failpoints.reach("record.writing")
        await self._write(connection, _NEW, batch, batch.others)
        self._failpoints.reach("record.written")
        await self._count(connection, batch)
        # What is left is repeated, or lost to others, whose rows the next transaction sees. What it
        # leaves repeats something else than the ledger has: new there, or in conflict with it.
        await self._write(connection, _AGAIN, batch, batch.unanswered)
        batch.repeat_none()
        await self._write(connection, _NEW, batch, batch.unanswered)
        await self._write(connection, _AGAIN, batch, batch.unanswered)
        self._failpoints.reach("record.committed")
        receipts = batch.receipts()
        self._recent.note(arrivals, receipts)
        return receipts

    async def _count(self, connection: Connection, batch: _Batch) -> None:
        """Count what repeats the last events: most of what is repeated does."""
        if not batch.known:
            return
        events = sorted(batch.known)
        firsts = [batch.arrivals[batch.known[event][0]] for event in events]
        columns = self._keys(firsts) | {
            "events": bigints(events),
            "counts": ints([len(batch.known[event]) for event in events]),
            "row_limit": self._row_limit,
        }
        statement = self._queries.one(_KNOWN)
        for (event,) in await _run_past_deadlocks(connection, statement, columns):
            for place in batch.known[event]:
                batch.answer(place, Receipt(event, Outcome.DUPLICATE))

    async def _write(
        self, connection: Connection, name: str, batch: _Batch, places: list[int]
    ) -> None:
        """Run a statement, which is a transaction of its own, over places of a batch."""
        if not places:
            return
        columns = self._columns(name, batch, places)
        statement = self._queries.one(name, *_watched(columns))
        for position, event, outcome in await _run_past_deadlocks(connection, statement, columns):
            batch.answer(places[position - 1], Receipt(event, _OUTCOMES[outcome]))

    async def record_in(self, run: Run, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Write them in a transaction that does other things as well."""
        batch = _Batch(arrivals, RecentEvents())
        for name in (_NEW, _AGAIN):
            if places := batch.unanswered:
                columns = self._columns(name, batch, places)
                for row in await run(name, *_watched(columns), **columns):
                    receipt = Receipt(row["event"], _OUTCOMES[row["outcome"]])
                    batch.answer(places[row["position"] - 1], receipt)
        return batch.receipts()

    def _columns(self, name: str, batch: _Batch, places: list[int]) -> dict[str, Any]:
        """What a statement needs of these places, and nothing else: it is made in Python."""
        arrivals = [batch.arrivals[place] for place in places]
        columns = self._keys(arrivals) | {"bodies": blobs([batch.body(place) for place in places])}
        if name == _AGAIN:
            return columns | {"row_limit": self._row_limit}
        columns |= {
            "types": texts([arrival.type for arrival in arrivals]),
            "references": texts([arrival.reference for arrival in arrivals]),
            "headers": blobs([arrival.headers for arrival in arrivals]),
        }
        if any(arrival.duplicate_body for arrival in arrivals):
            rules = ints([int(arrival.duplicate_body) for arrival in arrivals])
            columns |= {"rules": rules, "held": HELD_AS_DUPLICATE_BODY}
        return columns

    def _keys(self, arrivals: Sequence[Arrival]) -> dict[str, Any]:
        return {
            "sources": ints([self._source_ids[arrival.source] for arrival in arrivals]),
            "event_ids": texts([arrival.event_id for arrival in arrivals]),
            "sha256s": blobs([arrival.body_sha256 for arrival in arrivals]),
        }


def _watched(columns: Mapping[str, Any]) -> list[str]:
    """What is asked of a statement, beyond the usual."""
    return ["duplicate_body"] if "rules" in columns else []


async def _run_past_deadlocks(
    connection: Connection, statement: Sql, columns: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Run a statement that is a transaction of its own, and again when others were in its way."""
    cursor = connection.cursor(row_factory=tuple_row)
    for _ in range(_RETRIES - 1):
        try:
            await cursor.execute(statement.pyformat, columns)
        except RETRYABLE:
            continue
        return await cursor.fetchall()
    await cursor.execute(statement.pyformat, columns)
    return await cursor.fetchall()
