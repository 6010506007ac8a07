"""Everything that is known of one event, in order of time."""

from datetime import UTC, datetime
from typing import Any

from prove.checker import Finding
from prove.journal import Journal
from support.database import RawDatabase

# For each table: what is told of a row, after its time.
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


def told(finding: Finding, ledger: RawDatabase, journal: Journal) -> Finding:
    """The finding, with the timeline of its event."""
    if finding.number is None:
        return finding
    lines = tuple(timeline(ledger, journal, finding.number))
    return Finding(finding.rule, finding.detail, finding.number, lines)


def timeline(ledger: RawDatabase, journal: Journal, number: int) -> list[str]:
    """What its senders saw, and what the ledger and the handlers kept of it."""
    event_id = journal.mix.event_id(number)
    entries = [
        (
            attempt.start,
            (
                f"sent, variant {attempt.variant}: after "
                f"{(attempt.end - attempt.start) * 1000:.1f} ms "
                f"{attempt.outcome.name.lower()} ({attempt.status or 'no answer'})"
            ),
        )
        for attempt in journal.attempts_of(number)
    ]
    names = {"id": event_id}
    names["event"] = f"SELECT id FROM onceward.events WHERE event_id = '{event_id}'"  # noqa: S608 - our own id
    names["job"] = f"SELECT id FROM onceward.jobs WHERE event IN ({names['event']})"  # noqa: S608 - our own id
    for statement, text in _TABLES:
        for at, *values in ledger.rows(statement.format(**names)):
            entries.append((_seconds(at), text.format(*values)))
    entries += _held(ledger, names["job"])
    lines = [f"{_clock(at)}  {text}" for at, text in sorted(entries)]
    return [
        f"{event_id}, {journal.mix.kind(number).name.lower()}",
        *lines,
        *_runs(ledger, event_id),
    ]


def _held(ledger: RawDatabase, jobs: str) -> list[tuple[float, str]]:
    """The leases that name its jobs now; on SQLite they do so in JSON."""
    named = "json_each(l.jobs) AS held" if ledger.is_sqlite else "unnest(l.jobs) AS held (value)"
    found = ledger.rows(
        f"SELECT l.until, l.worker, l.token, held.value FROM onceward.leases l, {named} "  # noqa: S608 - our own
        f"WHERE held.value IN ({jobs})"
    )
    return [
        (_seconds(until), f"end of the lease {token} of {worker}, which names job {job}")
        for until, worker, token, job in found
    ]


def _runs(ledger: RawDatabase, event_id: str) -> list[str]:
    """The runs that were committed. They have no time of their own."""
    found = ledger.rows(f"SELECT worker FROM probes WHERE event = '{event_id}'")  # noqa: S608 - our own id
    return [f"(no time)        handler's work committed by process {worker}" for (worker,) in found]


def _seconds(at: Any) -> float:
    return at.timestamp() if isinstance(at, datetime) else at / 1e6


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S.%f")
