"""Checks of a ledger against the history: when idle, and after a power cut."""

from dataclasses import asdict, dataclass

from prove.history import History
from support.client_history import Outcome
from support.database import RawDatabase
from support.ledger_checker import Findings, LedgerChecker, LedgerTotals, Violation


@dataclass
class Figures(LedgerTotals):
    """The amounts behind a verdict: rows of the ledger, and requests of the senders."""

    requests: int = 0
    accepted: int = 0
    unknown: int = 0
    rejected: int = 0
    duplicates: int = 0
    conflicts: int = 0
    overlapping: int = 0
    requeues: int = 0


def check_ledger(ledger: RawDatabase, history: History) -> tuple[Findings, Figures]:
    """Compare an idle ledger with the history of its senders."""
    summary = history.summary()
    checker = LedgerChecker(ledger, summary)
    checker.check()
    _check_given_up(ledger, history, checker.findings)
    outcomes = history.outcomes()
    figures = Figures(
        **asdict(checker.totals),
        requests=len(history),
        accepted=history.accepted,
        unknown=history.unknown,
        rejected=outcomes[Outcome.REJECTED],
        duplicates=outcomes[Outcome.DUPLICATE],
        conflicts=outcomes[Outcome.CONFLICT],
        overlapping=summary.overlapping,
        requeues=sum(entry.outcome.is_accepted for entry in history.requeues),
    )
    return checker.findings, figures


GIVEN_UP = """
    SELECT e.event_id, COALESCE(a.failures, 0), COALESCE(g.runs, 0)
    FROM onceward.events e
    JOIN onceward.jobs j ON j.event = e.id
    JOIN onceward.handlers h ON h.id = j.handler AND h.has_on_failed
    LEFT JOIN (
        SELECT job, count(*) AS failures FROM onceward.attempts
        WHERE error = 'declined' OR error LIKE 'Malformed%' GROUP BY job
    ) AS a ON a.job = j.id
    LEFT JOIN (SELECT event, count(*) AS runs FROM given_up GROUP BY event) AS g
        ON g.event = e.event_id
    WHERE COALESCE(a.failures, 0) <> COALESCE(g.runs, 0)
"""


def _check_given_up(ledger: RawDatabase, history: History, findings: Findings) -> None:
    """Check that each failure for good has one committed run of its handler's on_failed."""
    for event_id, failures, runs in ledger.stream(GIVEN_UP):
        detail = f"{failures} failures, {runs} runs of on_failed"
        number = history.workload.number_of(event_id)
        findings.add(Violation.NOT_GIVEN_UP, detail, number)


COPY = """
    SELECT e.event_id, e.body_sha256, j.status, COALESCE(p.runs, 0)
    FROM onceward.events e
    LEFT JOIN onceward.jobs j ON j.event = e.id
    LEFT JOIN (SELECT event, count(*) AS runs FROM probes GROUP BY event) AS p
        ON p.event = e.event_id
"""


def check_copy(ledger: RawDatabase, history: History, requests: int) -> Findings:
    """Check a copy of the disk: every acknowledged event is there, and no work is half done.

    `requests` is how many requests had been answered when the copy was taken.
    """
    findings, workload = Findings(), history.workload
    present: set[int | None] = set()
    expected_balance = 0
    for event_id, sha256, status, runs in ledger.stream(COPY):
        number = workload.number_of(event_id)
        present.add(number)
        if runs != (status == "done"):
            detail = f"the job is {status}, {runs} runs were committed"
            findings.add(Violation.APPLIED_TWICE, detail, number)
        if number is not None and status == "done":
            variant = int(bytes(sha256) != workload.body_sha256(number, 0))
            expected_balance += workload.amount(number, variant)
    _check_given_up(ledger, history, findings)
    for number in history.acknowledged(requests) - present:
        findings.add(Violation.LOST, f"{workload.event_id(number)} is not in the copy", number)
    balance = int(ledger.value("SELECT COALESCE(sum(balance), 0) FROM accounts"))
    if balance != expected_balance:
        detail = f"the copy's accounts hold {balance}, not {expected_balance}"
        findings.add(Violation.UNBALANCED, detail)
    return findings
