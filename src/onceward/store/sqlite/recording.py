"""Recording a batch on SQLite: one delivery after the other, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.errors import StoreBlocked, Unwritable
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.runtime.failpoints import Failpoints
from onceward.store.base import ALTERED_ROWS, HELD_AS_DUPLICATE_BODY
from onceward.store.payload_routes import PayloadRoute, PayloadRoutes
from onceward.store.queries import Queries
from onceward.store.sqlite.connection_thread import run
from onceward.store.sqlite.schema import require_known_schema


class BatchWriter:
    """Writes batches in the transaction of the caller."""

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
        self._routes = PayloadRoutes()

    def record(
        self,
        connection: sqlite3.Connection,
        arrivals: Sequence[Arrival],
        originals: Sequence[int | None],
        now: int,
    ) -> list[Receipt]:
        """Write deliveries; `originals` has the recent events that they probably repeat.

        Raise NewerSchema.
        """
        require_known_schema(connection)
        first = _reserve_ids(connection, len(arrivals))
        rows = run(connection, self._queries("payload_routes"), {})
        self._routes.replace(PayloadRoute.from_row(**row) for row in rows)
        try:
            receipts = [
                self._record_one(connection, arrival, {"id": number, "now": now, "event": original})
                for number, (arrival, original) in enumerate(
                    zip(arrivals, originals, strict=True), first
                )
            ]
        except StoreBlocked as error:  # a filter of one delivery cannot be read
            if len(arrivals) == 1:
                raise
            raise Unwritable(str(error)) from error
        self._failpoints.reach("record.written")
        return receipts

    def _record_one(
        self,
        connection: sqlite3.Connection,
        arrival: Arrival,
        values: Mapping[str, Any],
    ) -> Receipt:
        values = {**values, **self._values(arrival)}
        if values["event"] and run(connection, self._queries("record_duplicates"), values):
            return Receipt(values["event"], Outcome.DUPLICATE)
        keys, verdicts = self._routes.read([arrival])
        values["keys"] = _json([(each.path, each.key) for each in keys])
        values["filters"] = _json([each.filter for each in verdicts if each.passes])
        flags = {
            "duplicate_body": arrival.duplicate_body,
            "filtered": verdicts,
            "reviewed": arrival.reviewed,
        }
        conditions = [name for name, is_true in flags.items() if is_true]
        rows = run(connection, self._queries("record_new", *conditions), values) or run(
            connection, self._queries("record_redeliveries"), values
        )
        if table := rows[0]["altered"] if rows else "onceward_events":
            raise Unwritable(ALTERED_ROWS.format(table=table))
        return Receipt(rows[0]["event"], Outcome(rows[0]["outcome"]))

    def _values(self, arrival: Arrival) -> dict[str, Any]:
        return {
            "source": self._source_ids[arrival.source],
            "event_id": arrival.event_id,
            "type": arrival.type,
            "reference": arrival.reference,
            "sha256": arrival.body_sha256,
            "covered_sha256": arrival.covered_sha256 or arrival.body_sha256,
            "headers": arrival.headers,
            "body": arrival.body,
            "row_limit": self._row_limit,
            "rule": int(arrival.duplicate_body),
            "held_error": HELD_AS_DUPLICATE_BODY,
        }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _reserve_ids(connection: sqlite3.Connection, count: int) -> int:
    """Reserve `count` ledger ids and return the first."""
    row = connection.execute(
        "UPDATE onceward_counters SET value = value + ? WHERE name = 'ledger_ids' RETURNING value",
        (count,),
    ).fetchone()
    if row is None:
        raise StoreBlocked(ALTERED_ROWS.format(table="onceward_counters"))
    return int(row[0]) - count + 1
