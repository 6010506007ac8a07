"""Sources, handlers, routes, tokens, provisioned secrets and live workers, on both stores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from onceward.model.admin import ProvisionedSecret
from onceward.model.jobs import HandlerEntry, UnroutedType
from onceward.model.workers import HEALTHY, WORKER_TIMEOUT_SECONDS, LiveWorker, WorkerHealth
from onceward.ports import Row
from onceward.store.base import BaseStore
from onceward.store.locks import Lock
from onceward.store.payload_routes import PayloadRoute
from onceward.store.registration import Registration

STALE_WORKER_SECONDS: Final = 600.0
"""Time until the row of a dead worker is deleted."""

_HANDLERS: Final = msgspec.json.Decoder(frozenset[str])
_HEALTH: Final = msgspec.json.Decoder(WorkerHealth)


class SqlRegistry(BaseStore):
    """The ports `Registry`, `SecretStore` and `UnroutedEvents`; `WorkerRegistry`, to read."""

    def __init__(self) -> None:
        super().__init__()
        self._registration = Registration(self._source_ids, self._handler_ids)

    async def register(
        self, sources: Sequence[str], handlers: Sequence[HandlerEntry], retired: Sequence[str]
    ) -> list[str]:
        """Register sources, handlers and their routes; drop the routes of `retired` handlers.

        Return the names of all handlers that have routes, in whichever process they run.
        """
        self._registration.set(sources, handlers, retired)
        async with self._transaction(Lock.REGISTRY) as transaction:
            routed = await self._registration.renew(transaction)
            routes = await transaction.run("payload_routes")
            await transaction.run("drop_stale_workers", stale_seconds=STALE_WORKER_SECONDS)
        self._payload_routes.replace(PayloadRoute.from_row(**row) for row in routes)
        return routed

    async def tokens(self) -> dict[str, bytes]:
        """Return the SHA-256 of each admin token of this database, by name."""
        return {row["name"]: bytes(row["sha256"]) for row in await self._read("tokens")}

    async def add_first_token(self, name: str, sha256: bytes) -> bool:
        """Store the first token. Return False if the database already has one."""
        async with self._transaction(Lock.REGISTRY) as transaction:
            return bool(await transaction.run("add_first_token", name=name, sha256=sha256))

    async def store_secret(self, source: str, secret: bytes) -> None:
        """Store a provisioned secret, durably."""
        async with self._transaction(Lock.REGISTRY) as transaction:
            await transaction.run("store_secret", source=self._source_ids[source], secret=secret)

    async def provisioned_secrets(self) -> list[ProvisionedSecret]:
        """Return all provisioned secrets, by source, newest first."""
        return [ProvisionedSecret(**row) for row in await self._read("provisioned_secrets")]

    async def delete_secrets(self, source: str) -> int:
        """Delete the provisioned secrets of a source and return their number."""
        async with self._transaction(Lock.REGISTRY) as transaction:
            return len(await transaction.run("delete_secrets", name=source))

    async def live_workers(self) -> list[LiveWorker]:
        """Return the workers whose last heartbeat is recent, by name."""
        rows = await self._read("live_workers", timeout_seconds=WORKER_TIMEOUT_SECONDS)
        return [worker for row in rows if (worker := _live_worker(row))]

    async def queued_handlers(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the handlers that have a queued job."""
        return frozenset(
            [name for name in sorted(names) if await self._read("queued_handler", name=name)]
        )

    async def unrouted_types(self, after: int, *, limit: int) -> list[UnroutedType]:
        """Return the types of the newest `limit` events after an id that no handler wanted."""
        rows = await self._read("unrouted_types", after=after, limit=limit)
        return [UnroutedType(**row) for row in rows]

    async def routed_sources(self, *, limit: int) -> frozenset[str]:
        """Return the sources of those among the newest `limit` events that a handler wanted."""
        rows = await self._read("routed_sources", limit=limit)
        return frozenset(row["name"] for row in rows)


def _live_worker(row: Row) -> LiveWorker | None:
    """Return a worker, or None if another version wrote a row that cannot be read."""
    try:
        handlers = _HANDLERS.decode(row["handlers"])
    except msgspec.MsgspecError:
        return None
    return LiveWorker(**{**row, "handlers": handlers, "health": _health(row["health"])})


def _health(text: str) -> WorkerHealth:
    """Return the health of a worker; of one that another version wrote, only what is readable."""
    try:
        return _HEALTH.decode(text)
    except msgspec.MsgspecError:
        return HEALTHY


def worker_parameters(
    worker: str, handlers: Sequence[str], health: WorkerHealth, *, is_start: bool
) -> dict[str, object]:
    """Return the parameters of the statement that renews a worker."""
    return {
        "name": worker,
        "handlers": msgspec.json.encode(sorted(handlers)).decode(),
        "health": msgspec.json.encode(health).decode(),
        "is_start": is_start,
    }
