"""The transaction of handlers that run within the request, on SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceward.model.events import Arrival
from onceward.model.inline import InlineRun, InlineSettlement
from onceward.ports import Rows
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.store.base import LedgerTransaction
from onceward.store.inline import settle
from onceward.store.sqlite.transaction import SqliteTransaction


class SqliteInlineTransaction:
    """The write transaction of handlers, which also records their events."""

    def __init__(
        self,
        transaction: SqliteTransaction,
        ledger: LedgerTransaction,
        source_ids: Mapping[str, int],
        failpoints: Failpoints,
    ) -> None:
        self._transaction = transaction
        self._ledger = ledger
        self._source_ids = source_ids
        self._failpoints = failpoints
        self.mark_effect = transaction.mark_effect
        self.commit = transaction.commit
        self.commit_done = transaction.commit_done
        self.lock_watermark = transaction.lock_watermark
        self.set_watermark = transaction.set_watermark
        self.settle_failed = transaction.settle_failed

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of a handler."""
        return await self._transaction.run(statement, parameters)

    async def settle_inline(
        self, arrivals: Sequence[Arrival], runs: Sequence[InlineRun]
    ) -> InlineSettlement:
        """Record the deliveries of a request and mark the jobs of its handlers as done."""
        settlement = await settle(self._ledger, arrivals, runs, self._source_ids)
        self._failpoints.reach("settle.written")
        return settlement
