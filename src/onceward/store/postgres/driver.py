"""The choice between psycopg's own connection and the one with the fast wait."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Final

import psycopg

from onceward.store.postgres.session import SessionConnection

LOWEST_TESTED: Final = (3, 2, 3)
HIGHEST_TESTED: Final = (3, 3, 9)
"""The psycopg versions that `waiting` was tested with: `make drivers` runs both ends.

Later patch releases of the same minor versions are used if they keep the contract.
"""

_log = logging.getLogger("onceward.store")


@cache  # one warning in a process, not one for each store
def connection_class(
    *, fast_wait: bool, version: str = psycopg.__version__
) -> type[SessionConnection]:
    """Return the class of connections to use.

    Log a warning and fall back to psycopg's own if `waiting` was not tested with this minor
    version, or if the internals that it uses have changed.
    """
    if not fast_wait:
        return SessionConnection
    fault = _fault(version)
    if fault is not None:
        _log.warning("psycopg %s %s: using its own, slower connection", version, fault)
        return SessionConnection
    # Imported here, because an untested psycopg may lack the names that the module imports.
    from onceward.store.postgres.waiting import FastWaitConnection  # noqa: PLC0415

    return FastWaitConnection


def _fault(version: str) -> str | None:
    """Return why the fast wait cannot be used with a version of psycopg."""
    parsed = _parse_version(version)
    if parsed < LOWEST_TESTED or parsed[:2] > HIGHEST_TESTED[:2]:
        lowest, highest = (".".join(map(str, each)) for each in (LOWEST_TESTED, HIGHEST_TESTED))
        return f"is outside the tested range {lowest} to {highest}"
    try:
        from onceward.store.postgres.psycopg_contract import broken_terms  # noqa: PLC0415
    except (AttributeError, ImportError) as error:
        return f"lacks internals that Onceward uses ({error})"
    broken = broken_terms()
    return f"has changed internals that Onceward uses ({', '.join(broken)})" if broken else None


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
