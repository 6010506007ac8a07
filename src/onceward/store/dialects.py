"""The setting `database_url`: the store of each database."""

from __future__ import annotations

from onceward.errors import ConfigurationError
from onceward.ports import Store
from onceward.ports.id_cache import IdCache
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import DATABASE_PLACES, Settings


def make_store(
    settings: Settings,
    failpoints: Failpoints,
    clock: Clock,
    id_cache: IdCache | None = None,
) -> Store:
    """Return the store for the database URL. Raise ConfigurationError for an unknown scheme.

    Import its dialect alone: that of the other database takes longer than the start itself.
    """
    url = settings.database_url
    if url.startswith("sqlite:///"):
        from onceward.store.sqlite.store import SqliteStore  # noqa: PLC0415

        return SqliteStore(settings, failpoints, clock)
    if url.startswith(("postgresql://", "postgres://")):
        from onceward.store.postgres.store import PostgresStore  # noqa: PLC0415

        return PostgresStore(settings, failpoints, id_cache)
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and rest:
        raise ConfigurationError(f"database_url: write sqlite:///{rest}, with three slashes")
    start = f"starts with {scheme[:20] + separator!r}" if separator else "has no scheme"
    raise ConfigurationError(
        f"database_url {start}; it must be sqlite:///file.db or postgresql://user@host/name; "
        f"it is set by {DATABASE_PLACES}"
    )
