"""A comparison of a whole idle ledger with the senders' history of it.

The handlers under test insert one unconstrained row into `probes` for each run, add the event's
amount to `accounts`, and may mark the effect ``credit:<event id>``.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from support.client_history import ClientHistory, Expectation, SentEvent
from support.database import RawDatabase, Row

MAX_DELIVERY_ROWS = 100
"""The product's limit of stored redeliveries for one event."""

MAX_DETAILED_FINDINGS = 5
"""Findings of one kind beyond these are only counted."""


class Violation(StrEnum):
    """A broken promise."""

    LOST = "acknowledged, but missing from the ledger"
    RECORDED_TWICE = "more than one ledger row for an id"
    REPORTED_NEW_TWICE = "reported as new more than once"
    UNEXPECTED = "in the ledger, but rejected or never sent"
    WRONG_BODY = "stored hash matches no body that was sent"
    WRONG_DELIVERY_COUNT = "delivery count differs from the requests sent"
    WRONG_RESPONSE = "valid request rejected, or invalid request accepted"
    UNFINISHED = "job did not finish"
    WRONG_FINAL_STATE = "job finished in the wrong state"
    APPLIED_TWICE = "handler work committed more than once"
    NOT_APPLIED = "job done without handler work"
    APPLIED_BUT_NOT_DONE = "handler work committed, but job not done"
    WRONG_EFFECT = "effect not recorded exactly once"
    ILLEGAL_TRANSITION = "attempts, failures and audit entries do not add up"
    UNBALANCED = "balances differ from the sum of the done events"
    SETTLED_LATE = "job settled under a lease that another worker holds"
    LEASE_LOST = "healthy worker lost a lease"
    PROCESS_EXITED = "process exited on its own"
    NOT_RECOVERED = "service did not recover"
    NOT_REPORTED = "ready although nothing can be stored"
    NOT_ENDED = "process did not end in time"
    SHARED_FILE = "two processes use one SQLite file"
    LEAKED = "connections, locks or transactions left behind"
    NOT_REJECTED = "requests not rejected while nothing could be stored"
    OVERLAPPED = "two jobs of a key ran at once"
    OUT_OF_ORDER = "jobs of a key ran out of order"
    STALLED = "job waits without a reason"
    LIMIT_EXCEEDED = "more jobs ran than their limit allows"
    STARTED_WHILE_PAUSED = "job started while it was paused"
    STALE_APPLIED = "an older version overwrote a newer one"
    NOT_GIVEN_UP = "on_failed not committed exactly once for each failure"
    CALLED_TWICE = "outside call applied more than once"
    NOT_CALLED = "job done without its outside call"
    NO_INTENT = "outside call without an intent"
    FORGED = "forwarded event without a valid signature"
    PAYLOAD_LOST = "payload dropped that a job needs"
    STATE_LOST = "event does not read as it ended"
    NOT_AUDITED = "rows deleted without an audit entry"
    NOT_ARCHIVED = "payload dropped that no recorded file has"
    ARCHIVE_DAMAGED = "recorded file of the archive missing or damaged"
    FALSE_KEY = "key in Redis of an event that the ledger does not have"
    FILTER_IGNORED = "event that a filter rejects has a job"
    FILTER_PASSED_BY = "handler got what its filter or its ordering key did not read"
    NOT_REVIEWED = "event of an unknown type does not wait for review"
    TOO_SLOW = "slower than its limit"


@dataclass(frozen=True)
class Finding:
    """One violation with its evidence."""

    violation: Violation
    detail: str
    number: int | None = None
    """The event's position in the history, if the finding is about one event."""
    timeline: tuple[str, ...] = ()


@dataclass
class Findings:
    """All violations: every one counted, the first of each kind in detail."""

    items: list[Finding] = field(default_factory=list)
    counts: Counter[Violation] = field(default_factory=Counter)

    def add(
        self,
        violation: Violation,
        detail: str,
        number: int | None = None,
        timeline: Iterable[str] = (),
    ) -> None:
        """Record one violation."""
        self.counts[violation] += 1
        if self.counts[violation] <= MAX_DETAILED_FINDINGS:
            self.items.append(Finding(violation, detail, number, tuple(timeline)))


# One row for each event and its only job. Related rows are joined as counts.
EVENTS = """
    SELECT
        e.event_id, e.body_sha256, e.deliveries, e.conflicts, e.routed, e.final_state,
        COALESCE(d.redeliveries, 0), COALESCE(d.conflicts, 0),
        j.id, j.status, j.failure_type, j.attempts,
        COALESCE(a.failures, 0), COALESCE(a.permanent, 0), COALESCE(a.last, 0),
        COALESCE(f.effects, 0), COALESCE(p.runs, 0), COALESCE(p.firsts, 0), COALESCE(u.requeues, 0),
        COALESCE(u.routes, 0), COALESCE(v.dismissals, 0)
    FROM onceward.events e
    LEFT JOIN onceward.jobs j ON j.event = e.id
    LEFT JOIN (
        SELECT event, count(*) AS redeliveries,
            sum(CASE WHEN outcome = 'conflict' THEN 1 ELSE 0 END) AS conflicts
        FROM onceward.deliveries GROUP BY event
    ) AS d ON d.event = e.id
    LEFT JOIN (
        SELECT job, count(*) AS failures, max(number) AS last, sum(
            CASE WHEN error LIKE 'declined%' OR error LIKE 'Malformed%' THEN 1 ELSE 0 END
        ) AS permanent
        FROM onceward.attempts GROUP BY job
    ) AS a ON a.job = j.id
    LEFT JOIN (SELECT job, count(*) AS effects FROM onceward.effects GROUP BY job) AS f
        ON f.job = j.id
    LEFT JOIN (
        SELECT event, count(*) AS runs, sum(is_first) AS firsts FROM probes GROUP BY event
    ) AS p ON p.event = e.event_id
    LEFT JOIN (
        SELECT subject, sum(CASE WHEN action = 'manual_requeue' THEN 1 ELSE 0 END) AS requeues,
            sum(CASE WHEN action = 'route' THEN 1 ELSE 0 END) AS routes
        FROM onceward.audit WHERE action IN ('manual_requeue', 'route') GROUP BY subject
    ) AS u ON u.subject = 'job:' || j.id
    LEFT JOIN (
        SELECT subject, count(*) AS dismissals FROM onceward.audit
        WHERE action = 'dismiss' GROUP BY subject
    ) AS v ON v.subject = 'event:' || e.id
"""

REPEATED_RUNS = "SELECT event, count(*) FROM probes GROUP BY event HAVING count(*) > 1"

WRONG_EFFECTS = """
    SELECT f.idempotency_key, f.status FROM onceward.effects f
    LEFT JOIN onceward.jobs j ON j.id = f.job
    LEFT JOIN onceward.events e ON e.id = j.event
    WHERE f.status <> 'succeeded' OR e.id IS NULL OR f.idempotency_key <> 'credit:' || e.event_id
"""


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of EVENTS."""

    event_id: str
    body_sha256: bytes
    deliveries: int
    conflicts: int
    routed: bool
    final_state: str | None
    redelivery_rows: int
    conflict_rows: int
    job: int | None
    status: str | None
    failure_type: str | None
    attempts: int | None
    failures: int
    permanent_failures: int
    last_attempt: int
    effects: int
    runs: int
    firsts: int
    requeues: int
    routes: int
    dismissals: int


@dataclass
class LedgerTotals:
    """How much a checker has read."""

    events: int = 0
    done: int = 0
    failed: int = 0
    ignored: int = 0
    failed_attempts: int = 0
    filtered: int = 0
    reviewed: int = 0
    routed: int = 0


class LedgerChecker:
    """Compares one idle ledger with one history."""

    def __init__(self, ledger: RawDatabase, history: ClientHistory) -> None:
        self.findings = Findings()
        self.totals = LedgerTotals()
        self._ledger = ledger
        self._history = history
        self._present = bytearray(len(history))
        self._runs = 0
        self._balance = 0
        self._requeues_sent = Counter(entry.job for entry in history.requeues)
        self._requeues_accepted = Counter(
            entry.job for entry in history.requeues if entry.outcome.is_accepted
        )

    def check(self) -> None:
        """Read the whole ledger, and add everything that is wrong to `findings`."""
        for row in self._ledger.stream(EVENTS):
            self._check_event(_event_row(row))
        self._check_repeated_runs()
        self._check_effects()
        self._check_responses()
        self._check_sums()

    def _check_event(self, row: EventRow) -> None:
        self.totals.events += 1
        self._runs += row.runs
        event = self._history.event(row.event_id)
        if event is None:
            self.findings.add(Violation.UNEXPECTED, f"{row.event_id} was never sent")
            return
        if self._present[event.number]:
            self.findings.add(Violation.RECORDED_TWICE, row.event_id, event.number)
            return
        self._present[event.number] = True
        if event.expectation is None:
            detail = f"{row.event_id} had to be rejected"
            self.findings.add(Violation.UNEXPECTED, detail, event.number)
            return
        self._check_deliveries(event, row)
        if event.expectation.has_job or (event.expectation.is_reviewed and row.job is not None):
            self._check_job(event, event.expectation, row)
            self._check_attempts(event, row)
            self._check_work(event, event.expectation, row)
        elif event.expectation.is_filtered:
            self._check_filtered(event, row)
        elif not event.expectation.is_reviewed:
            self._check_ignored(event, row)
        if event.expectation.is_reviewed:
            self._check_reviewed(event, row)

    def _check_deliveries(self, event: SentEvent, row: EventRow) -> None:
        if not event.accepted <= row.deliveries <= event.requests:
            detail = (
                f"{row.deliveries} deliveries; {event.requests} sent, {event.accepted} accepted"
            )
            self.findings.add(Violation.WRONG_DELIVERY_COUNT, detail, event.number)
        counted = (row.deliveries, row.conflicts)
        stored = (1 + row.redelivery_rows, row.conflict_rows)
        if row.redelivery_rows < MAX_DELIVERY_ROWS and counted != stored:
            detail = (
                f"{counted[0]} deliveries and {counted[1]} conflicts counted, "
                f"{stored[0]} and {stored[1]} stored"
            )
            self.findings.add(Violation.WRONG_DELIVERY_COUNT, detail, event.number)
        if self._history.amount(event, row.body_sha256) is None:
            self.findings.add(Violation.WRONG_BODY, row.body_sha256.hex(), event.number)

    def _check_ignored(self, event: SentEvent, row: EventRow) -> None:
        self.totals.ignored += 1
        if row.job is not None or row.routed or row.runs:
            detail = "an event without a handler has a job"
            self.findings.add(Violation.WRONG_FINAL_STATE, detail, event.number)

    def _check_filtered(self, event: SentEvent, row: EventRow) -> None:
        self.totals.filtered += 1
        if row.job is not None or row.runs:
            detail = f"the job is {row.status}, {row.runs} runs were committed"
            self.findings.add(Violation.FILTER_IGNORED, detail, event.number)
        elif (row.final_state, bool(row.routed)) != ("ignored", True):
            detail = f"it is {row.final_state}, routed: {bool(row.routed)}"
            self.findings.add(Violation.WRONG_FINAL_STATE, detail, event.number)

    def _check_reviewed(self, event: SentEvent, row: EventRow) -> None:
        """Check that an event left its review only by one action, which is audited."""
        self.totals.reviewed += 1
        self.totals.routed += row.job is not None
        left_by = {("review", 0, 0), ("ignored", 0, 1), (None, 1, 0)}
        if row.routes != (row.job is not None) or row.routed:
            detail = f"job {row.job}, {row.routes} audit entries, routed: {bool(row.routed)}"
            self.findings.add(Violation.NOT_REVIEWED, detail, event.number)
        # An event that was dismissed may be routed by an operator who listed it before.
        found = (row.final_state, row.routes, row.dismissals)
        if found not in left_by | {("ignored", 1, 1)}:
            self.findings.add(Violation.NOT_REVIEWED, f"it is {found}", event.number)

    def _check_job(self, event: SentEvent, expectation: Expectation, row: EventRow) -> None:
        self.totals.done += row.status == "done"
        self.totals.failed += row.status == "failed"
        if row.status == "queued":
            self.findings.add(Violation.UNFINISHED, f"job {row.job}", event.number)
        elif not _may_end(expectation, row):
            detail = f"{row.status} {row.failure_type}"
            self.findings.add(Violation.WRONG_FINAL_STATE, detail, event.number)

    def _check_attempts(self, event: SentEvent, row: EventRow) -> None:
        """Check that every attempt has one result, and that every requeue ran the job once more."""
        is_done = row.status == "done"
        self.totals.failed_attempts += row.failures
        expected = row.failures + is_done
        if row.attempts != expected or row.last_attempt > expected:
            detail = f"{row.attempts} attempts, {row.failures} of them stored as failed"
            self.findings.add(Violation.ILLEGAL_TRANSITION, detail, event.number)
        if row.status != "queued" and row.permanent_failures + is_done != 1 + row.requeues:
            detail = (
                f"{row.permanent_failures} permanent failures, done: {is_done}, "
                f"{row.requeues} requeues"
            )
            self.findings.add(Violation.ILLEGAL_TRANSITION, detail, event.number)
        job = row.job or 0
        sent, accepted = self._requeues_sent[job], self._requeues_accepted[job]
        if not accepted <= row.requeues <= sent:
            detail = f"{row.requeues} audit entries; {sent} requeues sent, {accepted} accepted"
            self.findings.add(Violation.ILLEGAL_TRANSITION, detail, event.number)

    def _check_work(self, event: SentEvent, expectation: Expectation, row: EventRow) -> None:
        """Check that a done job has one committed run, and any other job none."""
        is_done = row.status == "done"
        if is_done and not row.runs:
            self.findings.add(Violation.NOT_APPLIED, "no run was committed", event.number)
        elif row.runs and not is_done:
            detail = f"the job is {row.status}"
            self.findings.add(Violation.APPLIED_BUT_NOT_DONE, detail, event.number)
        expected = int(is_done and expectation.has_effect)
        if (row.effects, row.firsts) != (expected, expected):
            detail = f"{row.effects} effects, {row.firsts} first; expected {expected}"
            self.findings.add(Violation.WRONG_EFFECT, detail, event.number)
        if is_done:
            self._balance += self._history.amount(event, row.body_sha256) or 0

    def _check_repeated_runs(self) -> None:
        """Check that no event was applied twice, even if it is no longer in the ledger."""
        for event_id, runs in self._ledger.stream(REPEATED_RUNS):
            event = self._history.event(event_id)
            number = event.number if event else None
            self.findings.add(Violation.APPLIED_TWICE, f"{runs} runs were committed", number)

    def _check_effects(self) -> None:
        for key, status in self._ledger.stream(WRONG_EFFECTS):
            self.findings.add(Violation.WRONG_EFFECT, f"{key} {status}")

    def _check_responses(self) -> None:
        for event in self._history.events():
            if event.accepted and not self._present[event.number]:
                self.findings.add(Violation.LOST, event.event_id, event.number)
            if event.recorded > 1:
                detail = f"{event.recorded} times"
                self.findings.add(Violation.REPORTED_NEW_TWICE, detail, event.number)
            if event.accepted if event.expectation is None else event.rejected:
                self.findings.add(Violation.WRONG_RESPONSE, event.event_id, event.number)

    def _check_sums(self) -> None:
        balance = int(self._ledger.value("SELECT COALESCE(sum(balance), 0) FROM accounts"))
        if balance != self._balance:
            detail = f"the accounts hold {balance}, the done events sum to {self._balance}"
            self.findings.add(Violation.UNBALANCED, detail)
        if (runs := self._ledger.count("probes")) != self._runs:
            detail = f"{runs} runs were committed, {self._runs} of them for events in the ledger"
            self.findings.add(Violation.UNEXPECTED, detail)


def _event_row(row: Row) -> EventRow:
    event_id, sha256, *rest = row
    return EventRow(event_id, bytes(sha256), *rest)


def _may_end(expectation: Expectation, row: EventRow) -> bool:
    if row.status == "done":
        return expectation.can_succeed
    return expectation.can_fail and (row.status, row.failure_type) == ("failed", "permanent")
