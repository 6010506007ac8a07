"""Recording a batch on PostgreSQL: what is new, and what has been seen before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from psycopg.rows import tuple_row

from onceward.errors import OutcomeUnknown
from onceward.failpoints import Failpoints
from onceward.model import Arrival, Outcome, Receipt
from onceward.sqltext import Sql
from onceward.store.postgres_arrays import blobs, ints, texts
from onceward.store.postgres_link import RETRYABLE
from onceward.store.postgres_wait import Connection
from onceward.store.queries import Queries
from onceward.store.recent import Recent

_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
_RETRIES: Final = 5


class _Batch:
    """Deliveries, by their places, on the way to their receipts."""

    def __init__(self, arrivals: Sequence[Arrival], repeated: list[int]) -> None:
        self.arrivals = arrivals
        self.repeated = repeated
        self._bare = frozenset(repeated)
        self._receipts: dict[int, Receipt] = {}

    @property
    def others(self) -> list[int]:
        """Those that are not known to be repeated."""
        return [place for place in range(len(self.arrivals)) if place not in self._bare]

    @property
    def unanswered(self) -> list[int]:
        """Those without a receipt."""
        return [place for place in range(len(self.arrivals)) if place not in self._receipts]

    def body(self, place: int, *, may_be_known: bool) -> bytes | None:
        """The body, where the ledger may need it."""
        return None if may_be_known and place in self._bare else self.arrivals[place].body

    def answer(self, place: int, receipt: Receipt) -> None:
        """Keep a receipt."""
        self._receipts[place] = receipt

    def receipts(self) -> list[Receipt]:
        """All of them, in order of arrival. Raises OutcomeUnknown when one is missing."""
        if self.unanswered:
            message = "the ledger neither took nor knew an event"
            raise OutcomeUnknown(message)
        return [self._receipts[place] for place in range(len(self.arrivals))]


class _Run(NamedTuple):
    statement: Sql
    places: list[int]
    columns: dict[str, Any]


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
        self._recent = Recent()

    async def record(self, connection: Connection, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Write all of them durably, each event once; one answer each, in their order."""
        batch = _Batch(arrivals, self._recent.repeated(arrivals))
        self._failpoints.reach("record.writing")
        await self._write(connection, batch, record_new=batch.others, record_again=batch.repeated)
        self._failpoints.reach("record.written")
        # What is left lost to others, whose rows the next transaction sees. If it does not, they
        # repeat what the ledger has forgotten since, and are new.
        await self._write(connection, batch, record_again=batch.unanswered)
        await self._write(connection, batch, record_new=batch.unanswered)
        await self._write(connection, batch, record_again=batch.unanswered)
        self._failpoints.reach("record.committed")
        receipts = batch.receipts()
        self._recent.note(arrivals, receipts)
        return receipts

    async def _write(self, connection: Connection, batch: _Batch, **statements: list[int]) -> None:
        """Run statements over places of a batch, in one transaction."""
        runs = [
            _Run(self._queries.one(name), places, self._columns(name, batch, places))
            for name, places in statements.items()
            if places
        ]
        for run, rows in zip(runs, await _run_past_deadlocks(connection, runs), strict=True):
            for position, event, outcome in rows:
                batch.answer(run.places[position - 1], Receipt(event, _OUTCOMES[outcome]))

    def _columns(self, name: str, batch: _Batch, places: list[int]) -> dict[str, Any]:
        arrivals = [batch.arrivals[place] for place in places]
        is_again = name == "record_again"
        return {
            "sources": ints([self._source_ids[arrival.source] for arrival in arrivals]),
            "event_ids": texts([arrival.event_id for arrival in arrivals]),
            "types": texts([arrival.type for arrival in arrivals]),
            "references": texts([arrival.reference for arrival in arrivals]),
            "sha256s": blobs([arrival.body_sha256 for arrival in arrivals]),
            "headers": blobs([arrival.headers for arrival in arrivals]),
            "bodies": blobs([batch.body(place, may_be_known=is_again) for place in places]),
            "row_limit": self._row_limit,
        }


async def _run_past_deadlocks(
    connection: Connection, runs: Sequence[_Run]
) -> list[list[tuple[Any, ...]]]:
    """Run statements that are a transaction together, and again when others were in their way."""
    for _ in range(_RETRIES - 1):
        try:
            return await _run(connection, runs)
        except RETRYABLE:
            continue
    return await _run(connection, runs)


async def _run(connection: Connection, runs: Sequence[_Run]) -> list[list[tuple[Any, ...]]]:
    cursors = [connection.cursor(row_factory=tuple_row) for _ in runs]
    if len(runs) == 1:
        await cursors[0].execute(runs[0].statement.pyformat, runs[0].columns)
    elif runs:
        async with connection.pipeline():
            for cursor, run in zip(cursors, runs, strict=True):
                await cursor.execute(run.statement.pyformat, run.columns)
    return [await cursor.fetchall() for cursor in cursors]
