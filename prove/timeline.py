"""Everything known about one event, in chronological order."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from prove.history import History
from support.database import RawDatabase
from support.ledger_checker import Finding

# For each table: a query whose first column is a time, and a text for the other columns.
_TABLES = (
    (
        """SELECT received_at, id, type, deliveries, conflicts FROM onceward.events
        WHERE event_id = '{id}'""",
        "event {} recorded, type {}; {} deliveries, {} conflicts",
    ),
    (
        "SELECT received_at, id, outcome FROM onceward.deliveries WHERE event IN ({event})",
        "delivery {} recorded, {}",
    ),
    (
        """SELECT created_at, id, attempts, status, failure_type, last_error, solo
        FROM onceward.jobs WHERE event IN ({event})""",
        "job {} queued; since then {} attempts, now {} (failure {}, last error {}, solo {})",
    ),
    (
        """SELECT finished_at, id, status FROM onceward.jobs
        WHERE event IN ({event}) AND finished_at IS NOT NULL""",
        "job {} {}",
    ),
    (
        "SELECT ended_at, job, number, worker, error FROM onceward.attempts WHERE job IN ({job})",
        "job {} attempt {} by {} failed: {}",
    ),
    (
        """SELECT created_at, job, idempotency_key, status FROM onceward.effects
        WHERE job IN ({job})""",
        "job {} effect {} {}",
    ),
    (
        """SELECT at, subject, action, actor FROM onceward.audit
        WHERE subject IN (SELECT 'job:' || j.id FROM onceward.jobs j WHERE event IN ({event}))""",
        "{} {} by {}",
    ),
)

Entry = tuple[float, str]
"""A time in seconds since 1970, and what happened then."""


def with_timeline(finding: Finding, ledger: RawDatabase, history: History) -> Finding:
    """Add the timeline of its event to a finding that is about one event."""
    if finding.number is None:
        return finding
    return replace(finding, timeline=tuple(timeline(ledger, history, finding.number)))


def timeline(ledger: RawDatabase, history: History, number: int) -> list[str]:
    """Return the requests, rows, leases and committed runs of one event, one line each."""
    event_id = history.workload.event_id(number)
    event = f"SELECT id FROM onceward.events WHERE event_id = '{event_id}'"  # noqa: S608 - no outside input
    job = f"SELECT id FROM onceward.jobs WHERE event IN ({event})"  # noqa: S608 - no outside input
    entries = _requests(history, number)
    for statement, text in _TABLES:
        for at, *values in ledger.rows(statement.format(id=event_id, event=event, job=job)):
            entries.append((_seconds(at), text.format(*values)))
    entries += _leases(ledger, job)
    return [
        f"{event_id}, {history.workload.kind(number).name.lower()}",
        *(f"{_clock(at)}  {text}" for at, text in sorted(entries)),
        *_runs(ledger, event_id),
    ]


def _requests(history: History, number: int) -> list[Entry]:
    return [
        (
            request.start,
            (
                f"sent, variant {request.variant}: after "
                f"{(request.end - request.start) * 1000:.1f} ms "
                f"{request.outcome.name.lower()} ({request.status or 'no response'})"
            ),
        )
        for request in history.requests_for(number)
    ]


def _leases(ledger: RawDatabase, jobs: str) -> list[Entry]:
    """Return the leases that still list a job of the event; SQLite stores the list as JSON."""
    listed = "json_each(l.jobs) AS held" if ledger.is_sqlite else "unnest(l.jobs) AS held (value)"
    rows = ledger.rows(
        f"SELECT l.until, l.worker, l.token, held.value FROM onceward.leases l, {listed} "  # noqa: S608 - no outside input
        f"WHERE held.value IN ({jobs})"
    )
    return [
        (_seconds(until), f"lease {token} of {worker} on job {job} expires")
        for until, worker, token, job in rows
    ]


def _runs(ledger: RawDatabase, event_id: str) -> list[str]:
    """Return the committed runs, whose time is not recorded."""
    rows = ledger.rows(f"SELECT worker FROM probes WHERE event = '{event_id}'")  # noqa: S608 - no outside input
    return [f"(time unknown)   handler work committed by process {worker}" for (worker,) in rows]


def _seconds(at: Any) -> float:
    return at.timestamp() if isinstance(at, datetime) else at / 1e6


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S.%f")
