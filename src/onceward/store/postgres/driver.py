"""The choice between psycopg's own connection and the one with the fast wait."""

from __future__ import annotations

import logging
import re
from typing import Final

import psycopg

from onceward.store.postgres.session import SessionConnection

LOWEST_TESTED: Final = (3, 2, 3)
HIGHEST_TESTED: Final = (3, 3, 9)
"""The psycopg versions that `waiting` was tested with: `make drivers` runs both ends."""

_log = logging.getLogger("onceward.store")


def connection_class(
    *, fast_wait: bool, version: str = psycopg.__version__
) -> type[SessionConnection]:
    """Return the class of connections to use.

    Log a warning and fall back to psycopg's own if `waiting` was not tested with this version.
    """
    if not fast_wait:
        return SessionConnection
    if LOWEST_TESTED <= _parse_version(version) <= HIGHEST_TESTED:
        # Imported here, because an untested psycopg may lack the names that the module imports.
        from onceward.store.postgres.waiting import FastWaitConnection  # noqa: PLC0415

        return FastWaitConnection
    _log.warning(
        "psycopg %s is outside the tested range %s to %s: using its own, slower connection",
        version,
        ".".join(map(str, LOWEST_TESTED)),
        ".".join(map(str, HIGHEST_TESTED)),
    )
    return SessionConnection


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
