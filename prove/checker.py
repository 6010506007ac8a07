"""At rest, the whole ledger is what the senders' journal allows: nothing lost, doubled, made up."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from prove.journal import Counts, Journal, Outcome
from prove.mix import BOOKED, Kind
from support.database import RawDatabase

CHUNK_ROWS = 5_000
DELIVERY_ROWS = 100
"""The product's own limit of rows for the redeliveries of one event."""


class Rule(StrEnum):
    """What was broken."""

    LOST = "acknowledged, and not in the ledger"
    TWICE_RECORDED = "more than one row for an id"
    TWICE_FIRST = "said to be new more than once"
    MADE_UP = "in the ledger, and never sent or refused"
    WRONG_BODY = "its stored hash is of no body that was sent"
    WRONG_COUNT = "its deliveries are not those that were sent"
    WRONGLY_ANSWERED = "refused though it was right, or accepted though it was not"
    NOT_AT_REST = "its job did not come to an end"
    WRONG_END = "its job ended as it should not"
    TWICE_DONE = "its handler's work was committed more than once"
    NOT_DONE = "done, without its handler's work"
    WORK_UNDONE = "its handler's work was committed, and it is not done"
    WRONG_EFFECT = "its effect is not marked once"
    ILLEGAL_MOVE = "its attempts, ends and audit entries do not add up"
    UNBALANCED = "the balances are not the sum of what is done"
    LEASE_LOST = "a healthy worker lost a lease while nothing was wrong"
    DIED = "a process ended by itself"
    NOT_BACK = "the service did not take requests again"
    NOT_REFUSED = "a request was accepted that could not be written"


@dataclass(frozen=True)
class Finding:
    """One thing that must not be."""

    rule: Rule
    detail: str
    number: int | None = None
    """The event that it is about."""
    timeline: tuple[str, ...] = ()


@dataclass
class Findings:
    """Everything that was found, in full for the first of each rule."""

    items: list[Finding] = field(default_factory=list)
    counts: Counter[Rule] = field(default_factory=Counter)

    def add(self, rule: Rule, detail: str, number: int | None = None) -> None:
        """Note one."""
        self.counts[rule] += 1
        if self.counts[rule] <= 5:
            self.items.append(Finding(rule, detail, number))


# Everything about an event and its job in one row. The deliveries, attempts, effects, probes and
# audit entries are counted where they are, which proves the same as to look at each.
HISTORY = """
    SELECT
        e.event_id, e.body_sha256, e.deliveries, e.conflicts, e.routed,
        COALESCE(d.again, 0), COALESCE(d.conflicts, 0),
        j.id, j.status, j.failure_type, j.attempts,
        COALESCE(a.failures, 0), COALESCE(a.ends, 0), COALESCE(a.last, 0),
        COALESCE(f.marks, 0), COALESCE(p.runs, 0), COALESCE(p.firsts, 0), COALESCE(u.requeues, 0)
    FROM onceward.events e
    LEFT JOIN onceward.jobs j ON j.event = e.id
    LEFT JOIN (
        SELECT event, count(*) AS again,
            sum(CASE WHEN outcome = 'conflict' THEN 1 ELSE 0 END) AS conflicts
        FROM onceward.deliveries GROUP BY event
    ) AS d ON d.event = e.id
    LEFT JOIN (
        SELECT job, count(*) AS failures, max(number) AS last, sum(
            CASE WHEN error = 'vetoed' OR error LIKE 'Malformed%' THEN 1 ELSE 0 END
        ) AS ends
        FROM onceward.attempts GROUP BY job
    ) AS a ON a.job = j.id
    LEFT JOIN (
        SELECT job, count(*) AS marks FROM onceward.effects WHERE status = 'succeeded' GROUP BY job
    ) AS f ON f.job = j.id
    LEFT JOIN (
        SELECT event, count(*) AS runs, sum(is_first) AS firsts FROM probes GROUP BY event
    ) AS p ON p.event = e.event_id
    LEFT JOIN (
        SELECT subject, count(*) AS requeues FROM onceward.audit
        WHERE action = 'manual_requeue' GROUP BY subject
    ) AS u ON u.subject = 'job:' || j.id
"""


TWICE = "SELECT event, count(*) FROM probes GROUP BY event HAVING count(*) > 1"


@dataclass(frozen=True, slots=True)
class History:
    """A row of HISTORY."""

    event_id: str
    body_sha256: bytes
    deliveries: int
    conflicts: int
    routed: bool
    again: int
    again_in_conflict: int
    job: int | None
    status: str | None
    failure_type: str | None
    attempts: int | None
    failures: int
    ends: int
    last_attempt: int
    marks: int
    runs: int
    firsts: int
    requeues: int


@dataclass
class Figures:
    """How much was looked at."""

    events: int = 0
    done: int = 0
    failed: int = 0
    ignored: int = 0
    attempts: int = 0
    accepted: int = 0
    unknown: int = 0
    refused: int = 0
    duplicates: int = 0
    conflicts: int = 0
    overlapping: int = 0
    requeues: int = 0
    failed_attempts: int = 0


class Checker:
    """Holds one ledger against one journal, when nothing moves any more."""

    def __init__(self, ledger: RawDatabase, journal: Journal) -> None:
        self.findings = Findings()
        self.figures = Figures()
        self._ledger = ledger
        self._journal = journal
        self._mix = journal.mix
        self._counts: Counts = journal.counts()
        self._seen = bytearray(self._mix.sent)
        self._runs = 0
        self._balance = 0
        self._asked: Counter[int] = Counter()
        self._granted: Counter[int] = Counter()

    def check(self) -> None:
        """Look at everything."""
        for entry in self._journal.requeues:
            self._asked[entry.job] += 1
            self._granted[entry.job] += entry.outcome.is_ok
        for row in rows(self._ledger, HISTORY):
            self._check_event(_history(row))
        self._check_runs()
        self._check_absent()
        self._check_sums()
        self._add_up()

    def _check_event(self, row: History) -> None:
        self.figures.events += 1
        self._runs += row.runs
        number = self._mix.number(row.event_id)
        if number is None or not self._counts.sent[number]:
            self.findings.add(Rule.MADE_UP, f"{row.event_id} was never sent")
            return
        if self._seen[number]:
            self.findings.add(Rule.TWICE_RECORDED, f"{row.event_id} again", number)
            return
        self._seen[number] = True
        kind = self._mix.kind(number)
        if kind is Kind.REFUSED:
            self.findings.add(Rule.MADE_UP, f"{row.event_id} was refused", number)
            return
        self._check_deliveries(number, row)
        if kind is Kind.UNKNOWN:
            self._check_ignored(number, row)
        else:
            self._check_job(number, kind, row)
            self._check_work(number, kind, row)

    def _check_deliveries(self, number: int, row: History) -> None:
        accepted, sent = self._counts.accepted[number], self._counts.sent[number]
        if not accepted <= row.deliveries <= sent:
            detail = f"{row.deliveries} deliveries; {sent} were sent, {accepted} accepted"
            self.findings.add(Rule.WRONG_COUNT, detail, number)
        if row.again < DELIVERY_ROWS and (row.deliveries, row.conflicts) != (
            1 + row.again,
            row.again_in_conflict,
        ):
            detail = (
                f"{row.deliveries} deliveries and {row.conflicts} conflicts, and rows for "
                f"{1 + row.again} and {row.again_in_conflict}"
            )
            self.findings.add(Rule.WRONG_COUNT, detail, number)
        if self._variant(number, row) is None:
            self.findings.add(Rule.WRONG_BODY, row.body_sha256.hex(), number)

    def _variant(self, number: int, row: History) -> int | None:
        """Which of the bodies that were sent is the stored one."""
        sent = self._counts.variants[number]
        for variant in range(sent.bit_length()):
            if sent >> variant & 1 and self._mix.sha256(number, variant) == row.body_sha256:
                return variant
        return None

    def _check_ignored(self, number: int, row: History) -> None:
        self.figures.ignored += 1
        if row.job is not None or row.routed or row.runs:
            self.findings.add(Rule.WRONG_END, "nobody handles its type, and it has a job", number)

    def _check_job(self, number: int, kind: Kind, row: History) -> None:
        """Where it ended, and whether every move on the way there was legal."""
        is_done = row.status == "done"
        self.figures.done += is_done
        self.figures.failed += row.status == "failed"
        self.figures.failed_attempts += row.failures
        if row.status == "queued":
            self.findings.add(Rule.NOT_AT_REST, f"job {row.job}", number)
        elif not _may_end(kind, row):
            self.findings.add(Rule.WRONG_END, f"{row.status} {row.failure_type}", number)
        tried = row.failures + is_done
        if row.attempts != tried or row.last_attempt > tried:
            detail = f"{row.attempts} attempts, {row.failures} of them kept as failed"
            self.findings.add(Rule.ILLEGAL_MOVE, detail, number)
        if row.status != "queued" and row.ends + is_done != 1 + row.requeues:
            detail = f"{row.ends} times failed for good, done: {is_done}, {row.requeues} requeues"
            self.findings.add(Rule.ILLEGAL_MOVE, detail, number)
        asked, granted = self._asked[row.job or 0], self._granted[row.job or 0]
        if not granted <= row.requeues <= asked:
            detail = f"{row.requeues} audit entries; {asked} requeues asked for, {granted} granted"
            self.findings.add(Rule.ILLEGAL_MOVE, detail, number)

    def _check_work(self, number: int, kind: Kind, row: History) -> None:
        """One committed run for what is done, and none for anything else."""
        is_done = row.status == "done"
        if is_done and not row.runs:
            self.findings.add(Rule.NOT_DONE, "no run was committed", number)
        elif row.runs and not is_done:
            self.findings.add(Rule.WORK_UNDONE, f"the job is {row.status}", number)
        marks = int(is_done and kind is Kind.MARKED)
        if (row.marks, row.firsts) != (marks, marks):
            detail = f"{row.marks} marks, {row.firsts} first; there should be {marks}"
            self.findings.add(Rule.WRONG_EFFECT, detail, number)
        if is_done:
            self._balance += self._mix.amount(number, self._variant(number, row) or 0)

    def _check_runs(self) -> None:
        """No event was worked on twice, whether it is still in the ledger or not."""
        for event_id, runs in rows(self._ledger, TWICE):
            number = self._mix.number(event_id)
            self.findings.add(Rule.TWICE_DONE, f"{runs} runs were committed", number)

    def _check_absent(self) -> None:
        counts = self._counts
        for number in range(self._mix.sent):
            if counts.accepted[number] and not self._seen[number]:
                self.findings.add(Rule.LOST, self._mix.event_id(number), number)
            if counts.firsts[number] > 1:
                self.findings.add(Rule.TWICE_FIRST, f"{counts.firsts[number]} times", number)
            is_wrong = self._mix.kind(number) is Kind.REFUSED
            if counts.accepted[number] if is_wrong else counts.refused[number]:
                self.findings.add(Rule.WRONGLY_ANSWERED, self._mix.kind(number).name, number)

    def _check_sums(self) -> None:
        balance = int(self._ledger.value("SELECT COALESCE(sum(balance), 0) FROM accounts"))
        if balance != self._balance:
            detail = f"the accounts hold {balance}, what is done comes to {self._balance}"
            self.findings.add(Rule.UNBALANCED, detail)
        if (runs := self._ledger.count("probes")) != self._runs:
            detail = f"{runs} runs were committed, {self._runs} of them for events in the ledger"
            self.findings.add(Rule.MADE_UP, detail)

    def _add_up(self) -> None:
        figures, outcomes = self.figures, self._journal.outcomes()
        figures.attempts = len(self._journal)
        figures.accepted = self._journal.accepted
        figures.unknown = self._journal.unknown
        figures.refused = outcomes[Outcome.REFUSED]
        figures.duplicates = outcomes[Outcome.DUPLICATE]
        figures.conflicts = outcomes[Outcome.CONFLICT]
        figures.overlapping = self._counts.overlapping
        figures.requeues = sum(self._granted.values())


def _may_end(kind: Kind, row: History) -> bool:
    """Whether an event of this kind may end like that."""
    if row.status == "done":
        return kind is not Kind.MALFORMED
    return kind not in BOOKED and (row.status, row.failure_type) == ("failed", "permanent")


def check_copy(ledger: RawDatabase, journal: Journal, attempts: int) -> Findings:
    """After a power cut: what was acknowledged is there, and no work is half done."""
    findings, mix = Findings(), journal.mix
    found: set[int | None] = set()
    balance = 0
    for event_id, sha256, status, runs in rows(ledger, COPY):
        number = mix.number(event_id)
        found.add(number)
        if runs != (status == "done"):
            findings.add(Rule.TWICE_DONE, f"{status}, and {runs} runs were committed", number)
        if number is not None and status == "done":
            variant = int(bytes(sha256) != mix.sha256(number, 0))
            balance += mix.amount(number, variant)
    for number in journal.acknowledged(attempts) - found:
        findings.add(Rule.LOST, f"{mix.event_id(number)} is not in the copy", number)
    held = int(ledger.value("SELECT COALESCE(sum(balance), 0) FROM accounts"))
    if held != balance:
        findings.add(Rule.UNBALANCED, f"the copy's accounts hold {held}, not {balance}")
    return findings


COPY = """
    SELECT e.event_id, e.body_sha256, j.status, COALESCE(p.runs, 0)
    FROM onceward.events e
    LEFT JOIN onceward.jobs j ON j.event = e.id
    LEFT JOIN (SELECT event, count(*) AS runs FROM probes GROUP BY event) AS p
        ON p.event = e.event_id
"""


def rows(ledger: RawDatabase, statement: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a statement, one after the other, however many there are."""
    with ledger.connection() as connection, closing(ledger.cursor(connection)) as cursor:
        cursor.execute(ledger.spelt(statement))
        while chunk := cursor.fetchmany(CHUNK_ROWS):
            yield from chunk


def _history(row: tuple[Any, ...]) -> History:
    event_id, sha256, *rest = row
    return History(event_id, bytes(sha256), *rest)
