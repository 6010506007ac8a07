"""The check of a ledger that forgets: what is gone was allowed to go, and what must stay stayed."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from prove.checker import Figures
from prove.history import History, HistorySummary
from prove.retention.workload import PairedWorkload
from support.client_history import Outcome, SentEvent
from support.database import RawDatabase
from support.ledger_checker import Findings, Violation

MAX_PAIR_BATCHES = 3
"""The keys of a pair whose events are further apart in time may be forgotten between them."""
PERMANENT_ERRORS = ("declined", "Malformed")

EVENTS = """
    SELECT
        e.id, e.event_id, e.received_at, e.body_sha256, e.deliveries, e.routed, e.final_state,
        j.id, j.status, j.last_error, COALESCE(p.runs, 0), COALESCE(p.firsts, 0),
        COALESCE(d.rows, 0)
    FROM onceward.events e
    LEFT JOIN onceward.jobs j ON j.event = e.id
    LEFT JOIN (
        SELECT event, count(*) AS runs, sum(is_first) AS firsts FROM probes GROUP BY event
    ) AS p ON p.event = e.event_id
    LEFT JOIN (SELECT event, count(*) AS rows FROM onceward.deliveries GROUP BY event) AS d
        ON d.event = e.id
"""
PAYLOADS = "SELECT event, body FROM onceward.payloads"
BODIES = "SELECT event, sha256 FROM bodies"
DELETIONS = """
    SELECT subject FROM onceward.audit WHERE action IN ('purge', 'drop_partition')
"""
REPEATED_RUNS = "SELECT event, count(*) FROM probes GROUP BY event HAVING count(*) > 1"


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of EVENTS."""

    id: int
    event_id: str
    received_at: Any
    body_sha256: bytes
    deliveries: int
    routed: bool
    final_state: str | None
    job: int | None
    status: str | None
    last_error: str | None
    runs: int
    firsts: int
    delivery_rows: int

    @property
    def state(self) -> str | None:
        """How the event ended; None if nothing in the ledger says so."""
        if self.status is None:
            return self.final_state
        return {"done": "succeeded", "cancelled": "ignored"}.get(self.status, self.status)

    @property
    def week(self) -> str:
        """The Monday of its week."""
        at = self.received_at
        time = at if isinstance(at, datetime) else datetime(1970, 1, 1, tzinfo=UTC)
        time = time.astimezone(UTC) + timedelta(
            microseconds=0 if isinstance(at, datetime) else int(at)
        )
        return f"{time - timedelta(days=time.weekday()):%Y%m%d}"


@dataclass
class Seen:
    """What the stage saw while it ran."""

    batch_of: Mapping[int, int]
    """The batch of each event that was moved into the past."""
    states: Mapping[str, str]
    """What the admin API says about each event, by its id."""
    cancelled: set[int]
    """The jobs that an operator tried to cancel."""


@dataclass
class Gone:
    """What maintenance took from the ledger."""

    payloads: dict[int, EventRow] = field(default_factory=dict)
    jobs: int = 0
    deliveries: int = 0

    @property
    def weeks(self) -> set[str]:
        """Return the weeks of which payloads are gone."""
        return {row.week for row in self.payloads.values()}


class RetentionChecker:
    """Compares one idle ledger with the history of its senders and with what the stage saw."""

    def __init__(self, ledger: RawDatabase, history: History, seen: Seen) -> None:
        self.findings = Findings()
        self.figures = Figures()
        self.gone = Gone()
        self._ledger = ledger
        self._history = history
        self._summary: HistorySummary = history.summary()
        self._seen = seen
        self._present: set[int] = set()
        self._balance = 0
        self._runs = 0
        self._payloads = {
            event: hashlib.sha256(body).digest() for event, body in ledger.stream(PAYLOADS)
        }
        self._firsts: dict[str, list[EventRow]] = defaultdict(list)
        """The events of each pair that were processed."""
        self._effects = {
            key for (key,) in ledger.rows("SELECT idempotency_key FROM onceward.effects")
        }

    def check(self) -> None:
        """Read the whole ledger, and add everything that is wrong to `findings`."""
        for row in self._rows():
            self._check_event(row)
        self._check_repeated_runs()
        self._check_bodies()
        self._check_pairs()
        self._check_responses()
        self._check_sums()
        self._check_audit()
        self._add_figures()

    @property
    def forgotten_effects(self) -> int:
        """Return how many keys of pairs that were processed are gone."""
        return len(self._firsts.keys() - self._effects)

    def _rows(self) -> Iterator[EventRow]:
        for id_, event_id, at, sha256, *rest in self._ledger.stream(EVENTS):
            yield EventRow(id_, event_id, at, bytes(sha256), *rest)

    # Events.

    def _check_event(self, row: EventRow) -> None:
        self.figures.events += 1
        self._runs += row.runs
        event = self._summary.event(row.event_id)
        if event is None or event.expectation is None:
            detail = f"{row.event_id} was never sent, or had to be rejected"
            self.findings.add(Violation.UNEXPECTED, detail, event and event.number)
            return
        if event.number in self._present:
            self.findings.add(Violation.RECORDED_TWICE, row.event_id, event.number)
            return
        self._present.add(event.number)
        self._check_deliveries(event, row)
        self._check_payload(event, row)
        if event.expectation.has_job:
            self._check_end(event, row)
        elif row.job is not None or row.routed or row.runs:
            detail = "an event without a handler has a job"
            self.findings.add(Violation.WRONG_FINAL_STATE, detail, event.number)
        self._check_state(event, row)

    def _check_deliveries(self, event: SentEvent, row: EventRow) -> None:
        if not event.accepted <= row.deliveries <= event.requests:
            detail = (
                f"{row.deliveries} deliveries; {event.requests} sent, {event.accepted} accepted"
            )
            self.findings.add(Violation.WRONG_DELIVERY_COUNT, detail, event.number)
        self.gone.deliveries += max(0, row.deliveries - 1 - row.delivery_rows)
        if self._summary.amount(event, row.body_sha256) is None:
            self.findings.add(Violation.WRONG_BODY, row.body_sha256.hex(), event.number)

    def _check_payload(self, event: SentEvent, row: EventRow) -> None:
        found = self._payloads.get(row.id)
        if found is not None and found != row.body_sha256:
            detail = f"the payload has the hash {found.hex()}"
            self.findings.add(Violation.WRONG_BODY, detail, event.number)
        if found is not None:
            return
        self.gone.payloads[row.id] = row
        if row.status in ("queued", "failed"):
            detail = f"job {row.job} is {row.status}: {row.last_error}"
            self.findings.add(Violation.PAYLOAD_LOST, detail, event.number)
        elif row.id not in self._seen.batch_of:
            detail = "the payload of a recent event is gone"
            self.findings.add(Violation.PAYLOAD_LOST, detail, event.number)

    def _check_end(self, event: SentEvent, row: EventRow) -> None:
        expectation = event.expectation
        assert expectation is not None
        self.gone.jobs += row.job is None
        self.figures.done += row.state == "succeeded"
        self.figures.failed += row.state == "failed"
        self.figures.ignored += row.state == "ignored"
        match row.state:
            case "succeeded":
                is_right = expectation.can_succeed
                self._balance += self._summary.amount(event, row.body_sha256) or 0
                if not row.runs:
                    self.findings.add(Violation.NOT_APPLIED, "no run was committed", event.number)
            case "failed":
                is_permanent = (row.last_error or "").startswith(PERMANENT_ERRORS)
                is_right = expectation.can_fail and is_permanent
            case "ignored":
                is_right = expectation.can_fail and bool(self._seen.cancelled)
            case "queued":
                self.findings.add(Violation.UNFINISHED, f"job {row.job}", event.number)
                return
            case _:
                is_right = False
        if not is_right:
            detail = f"{row.status or row.final_state}, {row.last_error}"
            self.findings.add(Violation.WRONG_FINAL_STATE, detail, event.number)
        if row.runs and row.state != "succeeded":
            detail = f"{row.runs} runs; the event is {row.state}"
            self.findings.add(Violation.APPLIED_BUT_NOT_DONE, detail, event.number)
        self._add_to_pair(event, row)

    def _check_state(self, event: SentEvent, row: EventRow) -> None:
        """Check that the event reads as it ended: who asks knows nothing of jobs that are gone."""
        expected = "succeeded" if row.runs else (row.status or "ignored")
        expected = "ignored" if expected == "cancelled" else expected
        found = self._seen.states.get(row.event_id)
        if found != expected:
            detail = f"it reads {found} instead of {expected}"
            self.findings.add(Violation.STATE_LOST, detail, event.number)

    # Effects.

    def _add_to_pair(self, event: SentEvent, row: EventRow) -> None:
        workload = self._history.workload
        assert isinstance(workload, PairedWorkload)
        key = workload.effect_key(event.number)
        if key and row.runs:
            self._firsts[key].append(row)

    def _check_pairs(self) -> None:
        """Check that one event of each pair was the first to mark its effect."""
        for key, rows in self._firsts.items():
            batches = [self._seen.batch_of[row.id] for row in rows if row.id in self._seen.batch_of]
            if batches and max(batches) - min(batches) > MAX_PAIR_BATCHES:
                continue
            firsts = sum(row.firsts for row in rows)
            if firsts != 1:
                detail = f"{key} was marked first {firsts} times"
                self.findings.add(Violation.WRONG_EFFECT, detail)

    # Sums.

    def _check_repeated_runs(self) -> None:
        for event_id, runs in self._ledger.stream(REPEATED_RUNS):
            event = self._summary.event(event_id)
            detail = f"{runs} runs were committed"
            self.findings.add(Violation.APPLIED_TWICE, detail, event and event.number)

    def _check_bodies(self) -> None:
        """Check that each run that was committed got a body that was sent."""
        for event_id, sha256 in self._ledger.stream(BODIES):
            event = self._summary.event(event_id)
            if event is None or self._summary.amount(event, bytes.fromhex(sha256)) is None:
                detail = f"{event_id}: a run got the body {sha256}"
                self.findings.add(Violation.WRONG_BODY, detail, event and event.number)

    def _check_responses(self) -> None:
        for event in self._summary.events():
            if event.accepted and event.number not in self._present:
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

    def _check_audit(self) -> None:
        """Check that everything that is gone has its entry."""
        subjects = {subject for (subject,) in self._ledger.rows(DELETIONS)}
        expected = {f"payloads:{week}" for week in self.gone.weeks}
        expected |= {"jobs"} if self.gone.jobs else set()
        expected |= {"deliveries"} if self.gone.deliveries else set()
        expected |= {"effects"} if self.forgotten_effects else set()
        for subject in sorted(expected - subjects):
            self.findings.add(Violation.NOT_AUDITED, subject)

    def _add_figures(self) -> None:
        outcomes: Counter[int] = self._history.outcomes()
        figures = self.figures
        figures.requests = len(self._history)
        figures.accepted = self._history.accepted
        figures.unknown = self._history.unknown
        figures.rejected = outcomes[Outcome.REJECTED]
        figures.duplicates = outcomes[Outcome.DUPLICATE]
        figures.conflicts = outcomes[Outcome.CONFLICT]
        figures.overlapping = self._summary.overlapping
        figures.requeues = sum(entry.outcome.is_accepted for entry in self._history.requeues)
