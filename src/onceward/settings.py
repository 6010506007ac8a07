"""The settings: one table with the purpose, the default and the minimum of each.

The command line takes precedence over the code, and the code over the environment (``ONCEWARD_``
and the name in capitals): a test that names its own database never writes to one from the
environment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final, TypedDict

from onceward.errors import ConfigurationError
from onceward.model.retry import MAX_DELAY_SECONDS
from onceward.runtime.suggest import nearest, suggest_or_list

ENV_PREFIX: Final = "ONCEWARD_"
DATABASE_PLACES: Final = "--database, ONCEWARD_DATABASE_URL, or Inbox(…) in the code"
"""Where the database is set, the strongest place first."""
_OTHER_VARIABLES: Final = frozenset(
    {"FAILPOINTS", "SECRET", "TOKEN", "TEST_POSTGRES", "TEST_REDIS", "WRITE_DOCS"}
)
"""Variables with the prefix that are not settings."""
_OPTIONS: Final = frozenset({"HOST", "LOG", "PORT"})
"""Options of the command line that are not settings."""
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


ARCHIVE_DAYS: Final = 14
"""The days after `payload_days` in which a payload is archived: its week must be over first."""

MAX_ATTEMPTS: Final = 1_000_000
"""The most attempts that a job can have."""

_MAX_INTEGER: Final = 2**31 - 1  # of a column in PostgreSQL


def _setting(default: Any, doc: str, *, minimum: float = 0, maximum: float = _MAX_INTEGER) -> Any:
    return field(default=default, metadata={"doc": doc, "minimum": minimum, "maximum": maximum})


def _days(doc: str, *, default: int = 0) -> Any:
    return _setting(default, doc, maximum=36_500)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of an inbox, checked."""

    database_url: str = _setting(
        "sqlite:///onceward.db", "Ledger: sqlite:///file or postgresql://…"
    )
    redis: str = _setting(
        "", "Id cache that receivers on PostgreSQL share: redis://… or rediss://…"
    )
    migrate_at_start: bool = _setting(default=True, doc="Apply pending migrations at start")
    allow_weak_durability: bool = _setting(
        default=False, doc="Start even if the database may lose acknowledged events"
    )
    driver_fast_wait: bool = _setting(
        default=True,
        doc="Use psycopg's internals in tested minor versions: a cheaper wait, and the commit and "
        "the reset in one message",
    )
    own_http_protocol: bool = _setting(
        default=True, doc="Serve HTTP with Onceward's own connection; false uses uvicorn's"
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), "Host names accepted by unsigned sources, besides loopback"
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (),
        "Proxies whose X-Forwarded-For is trusted: addresses, networks",
    )
    access_log: bool = _setting(
        default=False, doc="Log a line for each request, to the logger onceward.access"
    )
    show_error_values: bool = _setting(
        default=False,
        doc="Show values in the stored errors of handlers; secrets stay masked",
    )
    max_body_bytes: int = _setting(
        5 * 1024 * 1024, "Largest body; a larger one gets 413", minimum=1
    )
    max_header_bytes: int = _setting(
        32 * 1024, "Largest header block; a larger one gets 431", minimum=1024
    )
    max_headers: int = _setting(100, "Most headers in a request; more get 431", minimum=8)
    body_timeout_seconds: float = _setting(
        10.0, "Time for a head, and again for a body, to arrive; then 408", minimum=0.05
    )
    max_connections: int = _setting(
        1000, "Most open connections; more get 503, except the first 16 from loopback", minimum=1
    )
    max_connections_per_address: int = _setting(
        100,
        "Most open connections from one address; not for loopback and trusted_proxies",
        minimum=1,
    )
    commit_timeout_seconds: float = _setting(
        2.0, "Time for the ledger to commit; then 503, and the sender retries", minimum=0.05
    )
    max_pending_events: int = _setting(
        10_000, "Deliveries that may wait for a commit; more get 503", minimum=1
    )
    max_pending_bytes: int = _setting(
        64 * 1024 * 1024,
        "Bytes of bodies and stored headers that may wait for a commit; more get 503",
        minimum=1024,
        maximum=2**63 - 1,
    )
    max_batch_events: int = _setting(
        200, "Most deliveries in one transaction; larger requests are written in parts", minimum=1
    )
    delivery_rows: int = _setting(
        100, "Redeliveries of one event stored as rows; further ones are only counted"
    )
    rejection_rows: int = _setting(
        1000, "Rejected requests stored for each source; all are counted"
    )
    dedupe_window_days: int = _days("Days until an event is deleted, with its id; 0 keeps events")
    payload_days: int = _days(
        "Days until bodies and headers are deleted; 0 keeps them as long as their events",
        default=90,
    )
    delivery_days: int = _days("Days until a redelivery is only counted; 0 keeps its row")
    job_days: int = _days("Days until a job that ended well is deleted; 0 keeps it")
    attempt_days: int = _days("Days until a failed attempt of such a job is deleted; 0 keeps it")
    rejection_days: int = _days("Days until a rejected request is deleted; 0 keeps it")
    audit_days: int = _days("Days until audit entries are dropped; 0 keeps them")
    effect_days: int = _days("Days after its last use until an effect's key is deleted; 0 keeps it")
    archive: str = _setting(
        "",
        "Where payloads are archived before they are dropped: s3://bucket/prefix or file:///folder",
    )
    workers: int = _setting(
        4, "Handlers that run concurrently in a process; 0 runs only those of inline sources"
    )
    max_jobs_per_transaction: int = _setting(
        64, 'Most jobs in one commit, for handlers with transaction="shared"; 1 disables', minimum=1
    )
    max_attempts: int = _setting(
        40,
        "Attempts of a job, unless its handler sets them; 40 last for a day",
        minimum=1,
        maximum=MAX_ATTEMPTS,
    )
    retry_base_seconds: float = _setting(
        1.0, "Delay before the second attempt; doubles with each further one", minimum=0.001
    )
    retry_max_seconds: float = _setting(3600.0, "Longest delay between two attempts", minimum=0.001)
    handler_timeout_seconds: float = _setting(
        60.0, "Timeout of a handler, unless it sets its own", minimum=0.01
    )
    effect_timeout_seconds: float = _setting(
        10.0, "Timeout of an outside call, unless its effect sets its own", minimum=0.01
    )
    lease_seconds: float = _setting(
        60.0, "Time until the jobs of an unresponsive worker are reclaimed", minimum=0.3
    )
    poll_seconds: float = _setting(
        5.0, "Interval at which a worker polls for jobs it was not notified of", minimum=0.05
    )
    drain_seconds: float = _setting(
        20.0, "Time for running handlers to finish when the process is asked to stop"
    )
    inline_timeout_seconds: float = _setting(
        8.0, "Time for a request to an inline source, with its handlers", minimum=0.1
    )
    inline_requests: int = _setting(
        8, "Requests to inline sources whose handlers run concurrently in a process", minimum=1
    )

    @property
    def uses_sqlite(self) -> bool:
        """Whether the ledger is an SQLite file, which one process serves."""
        return self.database_url.startswith("sqlite:")


class SettingsOptions(TypedDict, total=False):
    """The settings as keyword arguments of `Inbox`. A test compares them with `Settings`."""

    database_url: str
    redis: str
    migrate_at_start: bool
    allow_weak_durability: bool
    driver_fast_wait: bool
    own_http_protocol: bool
    allowed_hosts: tuple[str, ...] | list[str]
    trusted_proxies: tuple[str, ...] | list[str]
    access_log: bool
    show_error_values: bool
    max_body_bytes: int
    max_header_bytes: int
    max_headers: int
    body_timeout_seconds: float
    max_connections: int
    max_connections_per_address: int
    commit_timeout_seconds: float
    max_pending_events: int
    max_pending_bytes: int
    max_batch_events: int
    delivery_rows: int
    rejection_rows: int
    dedupe_window_days: int
    payload_days: int
    delivery_days: int
    job_days: int
    attempt_days: int
    rejection_days: int
    audit_days: int
    effect_days: int
    archive: str
    workers: int
    max_jobs_per_transaction: int
    max_attempts: int
    retry_base_seconds: float
    retry_max_seconds: float
    handler_timeout_seconds: float
    effect_timeout_seconds: float
    lease_seconds: float
    poll_seconds: float
    drain_seconds: float
    inline_timeout_seconds: float
    inline_requests: int


def resolve(
    *,
    command_line: Mapping[str, Any] | None = None,
    code: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Merge the three sources of settings. Raise ConfigurationError with every fault."""
    known = {entry.name: entry for entry in fields(Settings)}
    faults: list[str] = []
    values = _from_environment(known, environment or {}, faults)
    for options in (code or {}, command_line or {}):
        faults += [_unknown(name, known) for name in options if name not in known]
        faults += _empty(options, known)
        values |= {name: _frozen(value) for name, value in options.items() if name in known}
    for name, value in values.items():
        faults.extend(_check(known[name], value))
    if faults:
        raise ConfigurationError(faults)
    settings = Settings(**values)
    if faults := list(_combination_faults(settings)):
        raise ConfigurationError(faults)
    return settings


def misspelled_variables(environment: Iterable[str]) -> list[str]:
    """Return a warning for each variable that is no setting but is spelled almost like one.

    Other programs may use the prefix too, so that an unknown name is not an error.
    """
    known = {entry.name.upper() for entry in fields(Settings)} | {"ADMIN_TOKENS"}
    names = {name.removeprefix(ENV_PREFIX) for name in environment if name.startswith(ENV_PREFIX)}
    options = sorted(names & _OPTIONS)
    unknown = sorted(names - known - _OTHER_VARIABLES - _OPTIONS)
    suggestions = {name: nearest(name, known) for name in unknown}
    return [
        *(f"{ENV_PREFIX}{name} is not a setting; use --{name.lower()}" for name in options),
        *(
            f"{ENV_PREFIX}{name} is not a setting; did you mean {ENV_PREFIX}{suggestion}?"
            for name, suggestion in suggestions.items()
            if suggestion is not None
        ),
    ]


def default_database_note(options: Collection[str], environment: Mapping[str, str]) -> str:
    """Return why the database is the default one, or an empty text if it was chosen.

    `options` are the names of the settings in the code and on the command line.
    """
    variable = f"{ENV_PREFIX}DATABASE_URL"
    if "database_url" in options or environment.get(variable):
        return ""
    note = f"{variable} is not set, so the database is {Settings.database_url}"
    return f"{note}; DATABASE_URL is not read" if "DATABASE_URL" in environment else note


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError with every unknown name and invalid value."""
    known = {entry.name: entry for entry in fields(Settings)}
    faults: list[str] = []
    for name, value in options.items():
        faults += _check(known[name], _frozen(value)) if name in known else [_unknown(name, known)]
    faults += _empty(options, known)
    if faults:
        raise ConfigurationError(faults)


def _archive_faults(settings: Settings) -> Iterator[str]:
    """Yield why payloads would never be archived, or be deleted before."""
    if not settings.archive:
        return
    if not settings.payload_days:
        yield "archive is set, but payload_days is 0: no payload would be archived; set both"
    elif 0 < settings.dedupe_window_days < settings.payload_days + ARCHIVE_DAYS:
        yield (
            f"dedupe_window_days is {settings.dedupe_window_days}: events would be deleted before "
            f"their payloads are archived; set it to payload_days + {ARCHIVE_DAYS} "
            f"({settings.payload_days + ARCHIVE_DAYS}) or more, or shorten payload_days"
        )


def _combination_faults(settings: Settings) -> Iterator[str]:
    """Yield the faults of settings that are valid by themselves."""
    if settings.retry_max_seconds > MAX_DELAY_SECONDS:
        yield "retry_max_seconds is above 366 days; set a shorter delay"
    yield from _archive_faults(settings)
    if settings.retry_base_seconds > settings.retry_max_seconds:
        yield "retry_base_seconds is above retry_max_seconds; for a constant delay set both alike"
    if settings.max_pending_bytes < settings.max_body_bytes:
        yield (
            "max_pending_bytes is below max_body_bytes: a body of that size could never be accepted"
        )

    if settings.redis and settings.uses_sqlite:
        yield (
            "redis is set, but the ledger is SQLite: one process receives, and its own id cache "
            "is enough. Remove redis, or use PostgreSQL"
        )


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _empty(options: Mapping[str, Any], known: Mapping[str, Field[Any]]) -> list[str]:
    """Return a fault for each empty text: it may be a variable that was meant to be set."""
    return [
        f"{name} is an empty text; leave it out for the default ({known[name].default or 'none'}), "
        "or set it"
        for name, value in options.items()
        if value == "" and name in known and isinstance(known[name].default, str)
    ]


_SOURCE_OPTIONS: Final = {
    "mode": 'mode="inline"',
    "inline": 'mode="inline"',
    "unknown_types": 'unknown_types="review"',
    "secrets": 'secrets=["…"]',
}
"""Options of sources that are passed to the inbox by mistake, each as it should be written."""


def _unknown(name: str, known: Collection[str]) -> str:
    if example := _SOURCE_OPTIONS.get(name):
        option = example.partition("=")[0]
        advice = f'{option} is an option of inbox.source: inbox.source("…", {example})'
        return f"unknown setting {name!r}; {advice}"
    return f"unknown setting {name!r}{suggest_or_list(name, known, 'the settings are')}"


def _from_environment(
    known: Mapping[str, Field[Any]], environment: Mapping[str, str], faults: list[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, entry in known.items():
        variable = ENV_PREFIX + name.upper()
        if text := environment.get(variable):
            try:
                values[name] = _parse(entry.default, text)
            except ValueError:
                faults.append(f"{variable}: {text!r} is not {_kind(entry.default)}")
    return values


def _parse(default: object, text: str) -> Any:
    match default:
        case bool():
            return _parse_boolean(text)
        case int():
            return int(text)
        case float():
            return float(text)
        case tuple():
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case _:
            return text


def _parse_boolean(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError
    return text.lower() in _TRUE


def _check(entry: Field[Any], value: object) -> Iterator[str]:
    default = entry.default
    minimum, maximum = entry.metadata["minimum"], entry.metadata["maximum"]
    allowed = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, allowed) or isinstance(value, bool) is not isinstance(default, bool):
        yield f"{entry.name}: {value!r} is not {_kind(default)}"
    elif isinstance(value, (int, float)) and not value >= minimum:
        yield f"{entry.name}: {value!r} is too small; the minimum is {minimum}"
    elif isinstance(default, int) and isinstance(value, int) and value > maximum:
        yield f"{entry.name} is too large; the maximum is {maximum}"
    elif value == math.inf:
        yield f"{entry.name}: {value!r} is not a limit"


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
        case _:
            return "a string"
