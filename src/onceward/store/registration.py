"""The registration of a process in the ledger: its sources, its handlers and their routes.

A database can go back to an earlier state: a standby takes over that lacks the last transactions,
or a backup is restored. Its sources and routes may then be missing, or have other ids. So a process
remembers them, its own and those of the other processes, and restores them on each new connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec.structs import asdict

from onceward.errors import StoreBlocked
from onceward.model.jobs import HandlerEntry, QueueRules
from onceward.ports import Row
from onceward.runtime.log_fields import LogFields
from onceward.store.base import ALTERED_ROWS, LedgerTransaction

_log = logging.getLogger("onceward.store")

STALE_ROUTE_SECONDS: Final = 600.0
"""Time until a route is deleted that no process has. Processes renew theirs every minute."""

RENEWAL_GAP_SECONDS: Final = 180.0
"""A longer time between two renewals means that others could not renew their routes either."""

_ANY_SOURCE: Final = 0


class _Route(NamedTuple):
    handler: str
    source: str | None
    type: str
    is_prefix: bool
    filter: str


class _Options(NamedTuple):
    """The columns of a handler that follow from its code."""

    max_attempts: int
    rules: QueueRules
    has_on_failed: bool


@dataclass(slots=True)
class _Registered:
    """The sources, handlers and routes that a ledger has."""

    at: datetime
    """The time on the ledger's clock."""
    source_ids: dict[str, int]
    handler_ids: dict[str, int]
    options: dict[str, _Options]
    routes: dict[_Route, datetime]
    """When a process last renewed each route."""
    added: int = 0


class Registration:
    """The registration of one process, which it renews and restores."""

    def __init__(self, source_ids: dict[str, int], handler_ids: dict[str, int]) -> None:
        self._source_ids = source_ids
        self._handler_ids = handler_ids
        self._sources: Sequence[str] = ()
        self._handlers: Sequence[HandlerEntry] = ()
        self._retired: frozenset[str] = frozenset()
        self._known: _Registered | None = None
        self._renewing_since: datetime | None = None

    def set(
        self, sources: Sequence[str], handlers: Sequence[HandlerEntry], retired: Sequence[str]
    ) -> None:
        """Set what this process registers, and the handlers whose routes it drops."""
        self._sources, self._handlers = sources, handlers
        self._retired = frozenset(retired)

    async def renew(self, transaction: LedgerTransaction) -> list[str]:
        """Register everything, and delete the routes that no process renews.

        Return the names of all handlers that have routes, in whichever process they run. Raise
        StoreBlocked if the ledger did not keep something.
        """
        ledger = await _load(transaction)
        for name in self._retired:
            await transaction.run("drop_routes", name=name)
        if self._may_judge_others(ledger.at):
            await self._drop_stale_routes(transaction, ledger)
        await self._register(transaction, ledger, self._own_routes())
        ledger = await self._load_kept(transaction)
        self._known = ledger
        return sorted({route.handler for route in ledger.routes})

    async def is_complete(self, transaction: LedgerTransaction) -> bool:
        """Return whether the ledger has everything that was registered, under the same ids."""
        if self._known is None:
            return True  # nothing was registered
        ledger = await _load(transaction)
        return (
            self._source_ids.items() <= ledger.source_ids.items()
            and self._handler_ids.items() <= ledger.handler_ids.items()
            and not self._missing_routes(ledger, self._known)
        )

    async def restore(self, transaction: LedgerTransaction) -> None:
        """Register what is missing, before anything is recorded on a new connection.

        Raise StoreBlocked if the ledger did not keep something.
        """
        if self._known is None:
            return
        ledger = await _load(transaction)
        await self._register(transaction, ledger, self._missing_routes(ledger, self._known))
        await self._load_kept(transaction)
        if ledger.added:
            _log.warning(
                "the database went back to an earlier state: %d sources, handlers or routes were "
                "missing and are registered again. Events that it lost can only be sent again by "
                "their senders",
                ledger.added,
                extra=LogFields(count=ledger.added),
            )

    async def _load_kept(self, transaction: LedgerTransaction) -> _Registered:
        """Load what the ledger has now. Raise StoreBlocked if it lacks something of this process.

        Without its routes, events would be acknowledged and never handled.
        """
        ledger = await _load(transaction)
        is_kept = {
            "sources": self._source_ids.items() <= ledger.source_ids.items(),
            "handlers": self._handler_ids.items() <= ledger.handler_ids.items(),
            "routes": ledger.routes.keys() >= set(self._own_routes()),
        }
        for table, is_complete in is_kept.items():
            if not is_complete:
                raise StoreBlocked(ALTERED_ROWS.format(table=table))
        return ledger

    def _own_routes(self) -> Iterator[_Route]:
        for handler in self._handlers:
            for route in handler.routes:
                yield _Route(
                    handler.name, route.source, route.literal, route.is_prefix, route.filter
                )

    def _missing_routes(self, ledger: _Registered, known: _Registered) -> list[_Route]:
        """Return the routes that the ledger lacks, or has from before their last renewal."""
        others = (route for route in known.routes if route.handler not in self._retired)
        return [
            route
            for route in dict.fromkeys([*self._own_routes(), *others])
            if route not in ledger.routes
            or ledger.routes[route] < known.routes.get(route, ledger.routes[route])
        ]

    async def _register(
        self, transaction: LedgerTransaction, ledger: _Registered, routes: Iterable[_Route]
    ) -> None:
        """Add the sources and handlers that the ledger lacks; add or renew `routes`.

        The handlers of other processes get the options that they had at the last renewal.
        """
        for name in self._sources:
            self._source_ids[name] = await _source_id(transaction, ledger, name)
        options = self._known.options if self._known else {}
        own = {
            each.name: _Options(each.max_attempts, each.rules, each.has_on_failed)
            for each in self._handlers
        }
        options = {**options, **own}
        for name in own:
            self._handler_ids[name] = await _handler_id(transaction, ledger, name, options[name])
        for route in routes:
            name = route.handler
            await transaction.run(
                "add_route",
                handler=await _handler_id(transaction, ledger, name, options[name]),
                source=await _source_id(transaction, ledger, route.source),
                type=route.type,
                is_prefix=route.is_prefix,
                filter=route.filter,
            )
            ledger.added += route not in ledger.routes

    def _may_judge_others(self, now: datetime) -> bool:
        """Return whether every other process could renew its routes for STALE_ROUTE_SECONDS.

        They could while this one could. Measured on the ledger's clock, which may step.
        """
        since, last = self._renewing_since, self._known.at if self._known else None
        gap = now - last if last else None
        if (
            since is None
            or gap is None
            or not timedelta() <= gap <= timedelta(seconds=RENEWAL_GAP_SECONDS)
        ):
            self._renewing_since = since = now
        return now - since >= timedelta(seconds=STALE_ROUTE_SECONDS)

    async def _drop_stale_routes(self, transaction: LedgerTransaction, ledger: _Registered) -> None:
        """Delete the stale routes of this process's handlers.

        During a deploy two versions of a handler run side by side, and events that either of them
        wants become jobs.
        """
        for handler in self._handlers:
            if handler.name in ledger.handler_ids:
                await transaction.run(
                    "drop_stale_routes",
                    handler=ledger.handler_ids[handler.name],
                    stale_seconds=STALE_ROUTE_SECONDS,
                )


async def _load(transaction: LedgerTransaction) -> _Registered:
    kinds: dict[str, list[Row]] = {"route": [], "handler": [], "source": [], "clock": []}
    for row in await transaction.run("registered"):
        kinds[row["kind"]].append(row)
    routes = {_route(row): row["seen_at"] for row in kinds["route"]}
    return _Registered(
        at=kinds["clock"][0]["seen_at"],
        source_ids={row["name"]: row["id"] for row in kinds["source"]},
        handler_ids={row["name"]: row["id"] for row in kinds["handler"]},
        options={row["name"]: _options(row) for row in kinds["handler"]},
        routes=routes,
    )


def _route(row: Row) -> _Route:
    is_prefix = bool(row["is_prefix"])
    return _Route(row["name"], row["source"], row["type"], is_prefix, row["filter"])


def _options(row: Row) -> _Options:
    rules = QueueRules(
        ordering_key=row["ordering_key"],
        holds_key=bool(row["holds_key"]),
        concurrency=row["concurrency"],
        rate_interval_seconds=row["rate_interval_seconds"],
    )
    return _Options(row["max_attempts"], rules, bool(row["has_on_failed"]))


async def _source_id(transaction: LedgerTransaction, ledger: _Registered, name: str | None) -> int:
    if name is None:
        return _ANY_SOURCE
    if name not in ledger.source_ids:
        rows = await transaction.run("add_source", name=name)
        if not rows:
            raise StoreBlocked(ALTERED_ROWS.format(table="sources"))
        ledger.source_ids[name] = rows[0]["id"]
        ledger.added += 1
    return ledger.source_ids[name]


async def _handler_id(
    transaction: LedgerTransaction, ledger: _Registered, name: str, options: _Options
) -> int:
    """Return the id of a handler that has these options: add or change it if it has not."""
    if ledger.options.get(name) == options:
        return ledger.handler_ids[name]
    columns = {
        "name": name,
        "max_attempts": options.max_attempts,
        "has_on_failed": options.has_on_failed,
        **asdict(options.rules),
    }
    if name in ledger.handler_ids:
        await transaction.run("set_handler_options", **columns)
    else:
        rows = await transaction.run("add_handler", **columns)
        if not rows:
            raise StoreBlocked(ALTERED_ROWS.format(table="handlers"))
        ledger.handler_ids[name] = rows[0]["id"]
        ledger.added += 1
    ledger.options[name] = options
    return ledger.handler_ids[name]
