"""The settings: one table, with what each is for, its default and its least value.

What is written in code wins over the environment (``ONCEWARD_`` and the name in capitals), and the
command line wins over both: a test that names its own database never writes to the one that
happens to be exported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final

from onceward.errors import ConfigurationError

ENV_PREFIX: Final = "ONCEWARD_"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


def _setting(default: Any, doc: str, *, least: float = 0) -> Any:
    return field(default=default, metadata={"doc": doc, "least": least})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of an inbox, checked."""

    database_url: str = _setting(
        "sqlite:///onceward.db", "Where the ledger is: sqlite:///file or postgresql://…"
    )
    migrate_at_start: bool = _setting(
        default=True, doc="Bring the schema up to date when the inbox opens"
    )
    allow_weak_durability: bool = _setting(
        default=False, doc="Start although the database may lose what it acknowledged"
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), "Host names under which unsigned sources may be called, besides the loopback's"
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (), "Proxies whose X-Forwarded-Proto and X-Forwarded-Host are believed: addresses, networks"
    )
    max_body_bytes: int = _setting(5 * 1024 * 1024, "Largest body; more is 413", least=1)
    max_header_bytes: int = _setting(32 * 1024, "Largest header block; more is 431", least=1024)
    max_headers: int = _setting(100, "Most headers in a request; more is 431", least=8)
    body_timeout_seconds: float = _setting(10.0, "Longest wait for a body; then 408", least=0.05)
    commit_timeout_seconds: float = _setting(
        2.0, "Longest wait for the ledger; then 503 and the sender tries again", least=0.05
    )
    max_pending_events: int = _setting(10_000, "Most deliveries that wait for the ledger", least=1)
    max_pending_bytes: int = _setting(
        64 * 1024 * 1024, "Most bytes of bodies held at one time", least=1024
    )
    max_batch_events: int = _setting(200, "Most deliveries written in one transaction", least=1)
    delivery_rows: int = _setting(
        100, "Redeliveries of one event that get a row each; all are counted"
    )
    rejection_rows: int = _setting(
        1000, "Requests that did not verify, kept of each source; all are counted"
    )
    dedupe_window_days: int = _setting(
        0, "After how many days an event is forgotten; 0 for never. Effects never are"
    )
    workers: int = _setting(4, "Handlers that run at one time in a process; 0 receives only")
    max_jobs_per_transaction: int = _setting(
        64, "Most jobs that share a transaction, where their handlers allow it; 1 for none", least=1
    )
    max_attempts: int = _setting(3, "Attempts of a job, where its handler says nothing", least=1)
    retry_base_seconds: float = _setting(1.0, "Wait before the second attempt; doubles with each")
    retry_max_seconds: float = _setting(3600.0, "Longest wait between two attempts")
    handler_timeout_seconds: float = _setting(
        60.0, "Longest run of a handler, where it says nothing", least=0.01
    )
    lease_seconds: float = _setting(
        60.0, "After how long a silent worker's jobs go to another", least=0.3
    )
    poll_seconds: float = _setting(
        5.0, "How often a worker looks for work that nobody announced", least=0.05
    )
    drain_seconds: float = _setting(
        20.0, "How long running handlers may take to end when the process is asked to stop"
    )


def resolve(
    *,
    command_line: Mapping[str, Any] | None = None,
    code: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Make the settings of an inbox, or raise ConfigurationError with every fault found."""
    faults: list[str] = []
    known = {entry.name: entry for entry in fields(Settings)}
    values: dict[str, Any] = {}
    for name, entry in known.items():
        variable = ENV_PREFIX + name.upper()
        if environment and environment.get(variable):
            values[name] = _parse(entry, environment[variable], variable, faults)
    for given in (code or {}, command_line or {}):
        for name, value in given.items():
            if name in known:
                values[name] = tuple(value) if isinstance(value, list) else value
            else:
                faults.append(f"no setting is called {name!r}; there are {', '.join(known)}")
    for name, value in values.items():
        faults += _check(known[name], value)
    if faults:
        raise ConfigurationError(faults)
    settings = Settings(**values)
    if settings.max_pending_bytes < settings.max_body_bytes:
        raise ConfigurationError(
            "max_pending_bytes is below max_body_bytes: a body of that size could never be accepted"
        )
    return settings


def _parse(entry: Field[Any], text: str, variable: str, faults: list[str]) -> Any:
    try:
        match entry.default:
            case bool():
                return _boolean(text)
            case int():
                return int(text)
            case float():
                return float(text)
            case tuple():
                return tuple(part.strip() for part in text.split(",") if part.strip())
    except ValueError:
        faults.append(f"{variable}: {text!r} is not {_kind(entry.default)}")
        return entry.default
    return text


def _boolean(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError
    return text.lower() in _TRUE


def _check(entry: Field[Any], value: object) -> list[str]:
    default = entry.default
    allowed = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, allowed) or isinstance(value, bool) is not isinstance(default, bool):
        return [f"{entry.name}: {value!r} is not {_kind(default)}"]
    if isinstance(value, (int, float)) and not value >= entry.metadata["least"]:
        return [f"{entry.name}: {value!r} is too small; the least is {entry.metadata['least']}"]
    if value == math.inf:
        return [f"{entry.name}: {value!r} is no limit"]
    return []


def _kind(default: object) -> str:
    match default:
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case tuple():
            return "a list of names"
    return "a text"
