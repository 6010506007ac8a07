"""Faults of a PostgreSQL address, described without its password."""

from __future__ import annotations

import re
from typing import Final

from psycopg import pq

from onceward.runtime.suggest import did_you_mean

_HOST_WITH_PORT: Final = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*):(?P<port>[^:]+)")
_MISTYPED_PORT: Final = re.compile(r"(?=.*[0-9])[0-9A-Za-z]{1,6}")
"""A port that is shown. Anything else may be a part of a password."""
_PARAMETER: Final = re.compile(r"[A-Za-z_]{1,40}")
_JDBC_PARAMETER: Final = "ssl"
"""libpq accepts ``ssl=true``, although it does not list it."""


def has_stray_at(url: str) -> bool:
    """Return whether an @ follows the one that ends the password.

    libpq takes the first @ for the end, so that the host would be a part of the password.
    """
    rest = url.partition("://")[2]
    has_user = "@" in rest.partition("/")[0]
    after_user = rest.partition("@")[2] if has_user else rest
    return "@" in after_user.partition("?")[0]


def address_fault(url: str) -> str:
    """Return what is wrong with an address that cannot be used."""
    before_query, _, query = url.partition("://")[2].partition("?")
    user, at, address = before_query.rpartition("@")
    if at and ("@" in user or "/" in user):
        return (
            "database_url has @ or / inside the password or another part. Percent-encode it: "
            "write %40 for @, %2F for /, %3A for :, %23 for #, %3F for ? and %25 for %, as in "
            "postgresql://user:p%40ssword@host:5432/name"
        )
    is_plain = "@" not in query  # else the question mark is inside the password
    fault = _port_fault(address, has_user=bool(at)) or _parameter_fault(query)
    if is_plain and fault:
        return f"database_url: {fault}"
    return (
        "database_url is not a PostgreSQL address. It must be postgresql://"
        "user:password@host:port/name. Percent-encode @ / : % # ? inside a part, and use only "
        "parameters of PostgreSQL"
    )


def _port_fault(address: str, *, has_user: bool) -> str:
    """Return the fault of the first port that is not a number, or an empty text."""
    for host in address.partition("/")[0].split(","):
        match = _HOST_WITH_PORT.fullmatch(host)
        if match is None or match["port"].isdigit():
            continue
        if has_user and _MISTYPED_PORT.fullmatch(match["port"]):
            return f"the port {match['port']!r} is not a number"
        return "the port is not a number; write postgresql://user:password@host:5432/name"
    return ""


def _parameter_fault(query: str) -> str:
    """Return the fault of the first parameter that PostgreSQL does not have, or an empty text."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} | {_JDBC_PARAMETER}
    for part in query.split("&"):
        name = part.partition("=")[0]
        if name not in known and _PARAMETER.fullmatch(name):
            hint = did_you_mean(name, known) or "; PostgreSQL has no such parameter: remove it"
            return f"unknown parameter {name!r}{hint}"
    return ""
