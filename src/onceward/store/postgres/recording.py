"""Recording a batch on PostgreSQL: new events, duplicates and conflicts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from psycopg.rows import tuple_row

from onceward.errors import OutcomeUnknown, Unwritable
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.ports import BatchGroup
from onceward.ports.id_cache import IdCache
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.store.base import ALTERED_ROWS, HELD_AS_DUPLICATE_BODY, LedgerTransaction
from onceward.store.migrate import newest
from onceward.store.payload_routes import PayloadRoute, PayloadRoutes
from onceward.store.postgres.arrays import bigints, blobs, ints, texts
from onceward.store.postgres.connections import RETRYABLE, Connection
from onceward.store.postgres.id_hints import NO_HINTS, BatchHints, IdHints
from onceward.store.queries import Queries
from onceward.store.recent_events import RecentEvents

_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
_MAX_TRIES: Final = 5
_MAX_RELOADS: Final = 5
_NEW: Final = "record_new"
_DUPLICATES: Final = "record_duplicates"
_REDELIVERIES: Final = "record_redeliveries"
_NOT_RECORDED: Final = (
    "the ledger neither recorded nor recognised an event. The database was restored, or "
    + ALTERED_ROWS.format(table="onceward.events")
)

Rows = Sequence[tuple[Any, ...]]
Run = Callable[[str, Mapping[str, Any]], Awaitable[Rows]]
"""Runs a named statement."""


class _Batch:
    """Deliveries and, by position, the receipts that they have so far."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        recent: RecentEvents,
        routes_file: int | None = None,
        hints: BatchHints = NO_HINTS,
    ) -> None:
        self.arrivals = arrivals
        self.routes_file = routes_file
        """The file of the routes that the batch relies on; None if it was not read."""
        self.duplicates: dict[int, list[int]] = {}
        """The positions of the deliveries that probably repeat a recent event, by its id."""
        self._repeated: set[int] = set()
        self._receipts: list[Receipt | None] = [None] * len(arrivals)
        if hints.any_found or recent.may_repeat(arrivals):
            self._find_repeated(recent, hints.asked)

    def _find_repeated(self, recent: RecentEvents, hints: Mapping[int, int | None]) -> None:
        """Find the deliveries that repeat a recent event or an earlier position."""
        first_hashes: dict[tuple[str, str], bytes] = {}
        guessed: set[tuple[str, str]] = set()
        for position, arrival in enumerate(self.arrivals):
            key = arrival.source, arrival.event_id
            event = recent.find_original(arrival) or hints.get(position)
            if event and self._may_repeat(event, arrival):
                self.duplicates.setdefault(event, []).append(position)
                self._repeated.add(position)
                guessed.add(key)
                continue
            # After a wrong guess, the first delivery of a key must not lose to a later one.
            if key in guessed or first_hashes.get(key) == arrival.body_sha256:
                self._repeated.add(position)
            first_hashes.setdefault(key, arrival.body_sha256)

    def _may_repeat(self, event: int, arrival: Arrival) -> bool:
        """Return whether an earlier position that repeats the same event is the same delivery.

        The ledger checks only the first of them. A wrong hint must not take another along.
        """
        if (positions := self.duplicates.get(event)) is None:
            return True
        first = self.arrivals[positions[0]]
        return (
            first.source == arrival.source
            and first.event_id == arrival.event_id
            and first.body_sha256 == arrival.body_sha256
        )

    @property
    def probably_new(self) -> list[int]:
        """The positions that repeat neither a recent event nor an earlier position."""
        return [index for index in range(len(self.arrivals)) if index not in self._repeated]

    @property
    def unrecorded(self) -> list[int]:
        """The positions without a receipt."""
        if None not in self._receipts:
            return []
        return [index for index, receipt in enumerate(self._receipts) if receipt is None]

    def at(self, positions: Sequence[int]) -> Sequence[Arrival]:
        """Return the deliveries at some positions."""
        if len(positions) == len(self.arrivals):
            return self.arrivals
        return [self.arrivals[position] for position in positions]

    def bodies(self, positions: Sequence[int]) -> list[bytes | None]:
        """Return the bodies at some positions, without those that the ledger probably has."""
        repeated, arrivals = self._repeated, self.arrivals
        if not repeated:
            return [arrivals[position].body for position in positions]
        return [None if position in repeated else arrivals[position].body for position in positions]

    def send_all_bodies(self) -> None:
        """Stop assuming that the ledger has the body of any delivery."""
        self._repeated = set()

    def add_receipt(self, position: int, receipt: Receipt) -> None:
        """Store the receipt of one delivery."""
        self._receipts[position] = receipt

    def receipts(self) -> list[Receipt]:
        """Return all receipts, in order of arrival.

        Raise Unwritable if some are missing: alone, their neighbours are recognised as duplicates.
        Raise OutcomeUnknown if all are missing: the ledger may have been restored.
        """
        receipts = [receipt for receipt in self._receipts if receipt is not None]
        if len(receipts) < len(self.arrivals):
            if receipts:
                raise Unwritable(ALTERED_ROWS.format(table="onceward.events"))
            raise OutcomeUnknown(_NOT_RECORDED)
        return receipts


class BatchWriter:
    """Writes batches, and remembers the last events to recognise their duplicates."""

    def __init__(
        self,
        queries: Queries,
        source_ids: Mapping[str, int],
        payload_routes: PayloadRoutes,
        failpoints: Failpoints,
        *,
        row_limit: int,
        on_jobs: Callable[[], None],
        id_cache: IdCache | None = None,
    ) -> None:
        self._queries = queries
        self._source_ids = source_ids
        self._payload_routes = payload_routes
        self._failpoints = failpoints
        self._row_limit = row_limit
        self._on_jobs = on_jobs
        """Called after each commit that created jobs."""
        self._recent = RecentEvents()
        self._id_hints = IdHints(id_cache)

    @property
    def has_filters(self) -> bool:
        """Whether a route that this process knows has a filter."""
        return self._payload_routes.has_filters

    def batch_group(self, arrival: Arrival) -> BatchGroup:
        """Return the group in which a delivery is best written."""
        if self._recent.find_original(arrival) is None:
            return BatchGroup.NEW
        return BatchGroup.DUPLICATES

    async def record(
        self, connection: Connection, arrivals: Sequence[Arrival], routes_file: int
    ) -> list[Receipt]:
        """Record deliveries durably, each event once; return a receipt for each, in order.

        Raise OutcomeUnknown if the ledger has another file of routes: it was restored.
        """
        hints = await self._id_hints.find(connection, routes_file, arrivals, self._recent)
        batch = _Batch(arrivals, self._recent, routes_file, hints)

        async def run(name: str, columns: Mapping[str, Any]) -> Rows:
            statement = self._queries.one(name, *_conditions(columns))
            return await _run_with_retries(connection, statement, columns)

        self._failpoints.reach("record.writing")
        await self._write_and_announce(run, _NEW, batch, batch.probably_new)
        self._failpoints.reach("record.written")
        await self._write_duplicates(run, batch)
        # The rest repeats an event, or lost a race to another receiver, whose rows this
        # transaction sees.
        await self._write(run, _REDELIVERIES, batch, batch.unrecorded)
        # A guess was wrong if something is still left: the event is new, or its body differs.
        batch.send_all_bodies()
        await self._write_and_announce(run, _NEW, batch, batch.unrecorded)
        await self._write(run, _REDELIVERIES, batch, batch.unrecorded)
        self._failpoints.reach("record.committed")
        receipts = batch.receipts()
        self._recent.add(arrivals, receipts)
        self._id_hints.add(hints, arrivals, receipts)
        return receipts

    async def _write_duplicates(self, run: Run, batch: _Batch) -> None:
        """Count the deliveries that repeat a recent event, by its id: the cheapest statement."""
        if not batch.duplicates:
            return
        events = sorted(batch.duplicates)
        firsts = [batch.arrivals[batch.duplicates[event][0]] for event in events]
        columns = self._keys(batch, firsts) | {
            "events": bigints(events),
            "counts": ints([len(batch.duplicates[event]) for event in events]),
            "row_limit": self._row_limit,
        }
        for (event,) in await run(_DUPLICATES, columns):
            for position in batch.duplicates[event]:
                batch.add_receipt(position, Receipt(event, Outcome.DUPLICATE))

    async def _write_and_announce(
        self, run: Run, name: str, batch: _Batch, positions: list[int]
    ) -> None:
        if await self._write(run, name, batch, positions):
            self._on_jobs()

    async def _write(self, run: Run, name: str, batch: _Batch, positions: list[int]) -> bool:
        """Run a statement over some positions of a batch. Return whether it created jobs.

        If a handler has a filter or the path of a key that this process does not know, the
        statement records nothing: it runs again with the readings of all routes.
        """
        if not positions:
            return False
        rows = await run(name, self._columns(name, batch, positions))
        for _ in range(_MAX_RELOADS):
            if not _lacks_readings(rows):
                break
            routes = await run("payload_routes", {})
            self._payload_routes.replace(PayloadRoute.from_row(*route) for route in routes)
            rows = await run(name, self._columns(name, batch, positions))
        return _add_receipts(batch, positions, rows)

    async def record_in(
        self,
        transaction: LedgerTransaction,
        arrivals: Sequence[Arrival],
        routes_file: int | None = None,
    ) -> list[Receipt]:
        """Record deliveries as part of a larger transaction.

        With a `routes_file`, raise OutcomeUnknown if the ledger has another one: it was restored.
        """
        batch = _Batch(arrivals, RecentEvents(), routes_file)
        batch.send_all_bodies()

        async def run(name: str, columns: Mapping[str, Any]) -> Rows:
            rows = await transaction.run(name, *_conditions(columns), **columns)
            return [tuple(row.values()) for row in rows]

        for name in (_NEW, _REDELIVERIES):
            await self._write(run, name, batch, batch.unrecorded)
        return batch.receipts()

    def _columns(self, name: str, batch: _Batch, positions: list[int]) -> dict[str, Any]:
        """Return the arrays that a statement needs, and no others: each costs Python time."""
        arrivals = batch.at(positions)
        columns = self._keys(batch, arrivals) | {"bodies": blobs(batch.bodies(positions))}
        if name == _REDELIVERIES:
            return columns | {"row_limit": self._row_limit}
        columns |= {
            "types": texts([arrival.type for arrival in arrivals]),
            "references": texts([arrival.reference for arrival in arrivals]),
            "headers": blobs([arrival.headers for arrival in arrivals]),
        }
        if any(arrival.duplicate_body for arrival in arrivals):
            rules = ints([int(arrival.duplicate_body) for arrival in arrivals])
            covered = [arrival.covered_sha256 or arrival.body_sha256 for arrival in arrivals]
            columns |= {
                "rules": rules,
                "covered_sha256s": blobs(covered),
                "held_error": HELD_AS_DUPLICATE_BODY,
            }
        if any(arrival.reviewed for arrival in arrivals):
            columns["reviewed"] = ints([arrival.reviewed for arrival in arrivals])
        return columns | self._readings(arrivals)

    def _readings(self, arrivals: Sequence[Arrival]) -> dict[str, Any]:
        """Return what the payloads have for the routes that need it."""
        keys, verdicts = self._payload_routes.read(arrivals)
        columns: dict[str, Any] = {}
        if keys:
            columns |= {
                "key_positions": bigints([each.position for each in keys]),
                "key_paths": texts([each.path for each in keys]),
                "keys": texts([each.key for each in keys]),
            }
        if verdicts:
            columns |= {
                "verdict_positions": bigints([each.position for each in verdicts]),
                "filters": texts([each.filter for each in verdicts]),
                "verdicts": ints([each.passes for each in verdicts]),
            }
        return columns

    def _keys(self, batch: _Batch, arrivals: Sequence[Arrival]) -> dict[str, Any]:
        file = {} if batch.routes_file is None else {"routes_file": batch.routes_file}
        return file | {
            "schema": newest("postgres").number,
            "sources": ints([self._source_ids[arrival.source] for arrival in arrivals]),
            "event_ids": texts([arrival.event_id for arrival in arrivals]),
            "sha256s": blobs([arrival.body_sha256 for arrival in arrivals]),
        }


def _lacks_readings(rows: Rows) -> bool:
    """Return whether a statement recorded nothing for want of readings: it has no positions."""
    return any(positions is None for positions, *_ in rows)


def _add_receipts(batch: _Batch, positions: Sequence[int], rows: Rows) -> bool:
    """Store the receipts that a statement returned: arrays of positions and events, per outcome.

    Return whether the statement created jobs.
    """
    any_jobs = False
    for ordinals, events, outcome, has_jobs in rows:
        if ordinals is None:
            continue
        any_jobs |= has_jobs
        for ordinal, event in zip(ordinals, events, strict=True):
            batch.add_receipt(positions[ordinal - 1], Receipt(event, _OUTCOMES[outcome]))
    return any_jobs


def _conditions(columns: Mapping[str, Any]) -> list[str]:
    conditions = {
        "rules": "duplicate_body",
        "routes_file": "registered",
        "keys": "ordered",
        "verdicts": "filtered",
        "reviewed": "reviewed",
    }
    found = [condition for column, condition in conditions.items() if column in columns]
    return [*found, "jobless"] if {"filtered", "reviewed"} & set(found) else found


async def _run_with_retries(
    connection: Connection, statement: Sql, columns: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Run a statement that is its own transaction; retry it after a deadlock."""
    cursor = connection.cursor(binary=True, row_factory=tuple_row)
    for remaining in reversed(range(_MAX_TRIES)):
        try:
            await cursor.execute(statement.pyformat, columns)
            break
        except RETRYABLE:
            if not remaining:
                raise
    return await cursor.fetchall()
