"""Checks of an idle ledger, of committed runs and of markers against the rules of the handlers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from prove.checker import Figures
from prove.queueing.events import CONCURRENCY, ORDERED, RATE, Handler
from prove.queueing.markers import END, START, Marker
from prove.queueing.sender import Sent
from prove.queueing.trial import QueueTrial
from support.ledger_checker import Findings, Violation

PAUSE_LIMIT_SECONDS = 3.0
"""Jobs that a worker has claimed may start for this long after the response to a pause."""

RATE_BURST_SECONDS = 0.1
"""The product's: how much of its rate a handler may use at once."""

JITTER_SECONDS = 1.0
"""How long a claimed job may wait for its start, on a loaded machine: claims are limited."""

JOBS = """
    SELECT e.event_id, j.id, j.event, h.name, j.ordering_key, j.status, j.failure_type, j.attempts
    FROM onceward.jobs j
    JOIN onceward.events e ON e.id = j.event
    JOIN onceward.handlers h ON h.id = j.handler
"""


class JobRow(NamedTuple):
    """A row of JOBS."""

    event_id: str
    id: int
    event: int
    handler: str
    key: str | None
    status: str
    failure_type: str | None
    attempts: int


class Interval(NamedTuple):
    """A run of a handler, whether it committed or not."""

    start: float
    end: float
    marker: Marker


@dataclass
class QueueFigures:
    """How close the runs came to their limits."""

    max_concurrency: int = 0
    rate_excess: float = 0.0
    """The most starts in any window beyond the rate, as seconds of the rate."""
    last_start_after_pause: float = 0.0
    overtaken: int = 0
    """Jobs that committed after a later event, with which their own was being recorded."""


class QueueChecker:
    """Checks one trial whose jobs have ended."""

    def __init__(self, trial: QueueTrial) -> None:
        self.findings = Findings()
        self.figures = QueueFigures()
        self.tally: Counter[str] = Counter()
        self._trial = trial
        self._sent: Mapping[str, Sent] = trial.sender.sent
        self._jobs = {row.event_id: row for row in map(_job_row, trial.ledger.rows(JOBS))}
        self._runs = trial.ledger.rows(
            "SELECT handler, ordering_key, event, position FROM runs ORDER BY position"
        )
        self._markers = [marker for marker in trial.markers.read() if marker.kind in (START, END)]
        self._by_event: dict[str, list[Marker]] = defaultdict(list)
        for marker in self._markers:
            self._by_event[marker.event].append(marker)

    def check(self) -> None:
        """Add everything that is wrong to `findings`."""
        self._check_events()
        self._check_runs()
        for (handler, key), events in self._keys().items():
            self._check_order(handler, key, events)
        intervals = list(self._intervals())
        self._check_concurrency([run for run in intervals if run.marker.handler == Handler.CAPPED])
        self._check_rate([run.start for run in intervals if run.marker.handler == Handler.RATED])
        self._check_pauses()
        self._count(intervals)

    def _add(self, violation: Violation, detail: str, *events: str) -> None:
        self.findings.add(violation, detail, timeline=self._timeline(events))

    # Events, jobs and runs.

    def _check_events(self) -> None:
        ids = [
            event for (event,) in self._trial.ledger.rows("SELECT event_id FROM onceward.events")
        ]
        for event_id, count in Counter(ids).items():
            if count > 1:
                self._add(Violation.RECORDED_TWICE, event_id, event_id)
            if event_id not in self._sent:
                self._add(Violation.UNEXPECTED, f"{event_id} was never sent")
        for event_id, sent in self._sent.items():
            if sent.is_rejected:
                self._add(Violation.WRONG_RESPONSE, event_id, event_id)
            elif event_id not in self._jobs:
                self._add(Violation.LOST, f"{event_id} has no job", event_id)

    def _check_runs(self) -> None:
        runs = Counter(event for _, _, event, _ in self._runs)
        for job in self._jobs.values():
            count, is_done = runs[job.event_id], job.status == "done"
            if count > 1:
                self._add(Violation.APPLIED_TWICE, f"{count} runs were committed", job.event_id)
            elif count and not is_done:
                detail = f"job {job.id} is {job.status}"
                self._add(Violation.APPLIED_BUT_NOT_DONE, detail, job.event_id)
            elif is_done and not count:
                self._add(Violation.NOT_APPLIED, "no run was committed", job.event_id)
            if job.id in self._trial.cancelled and job.status != "cancelled":
                detail = f"job {job.id} was cancelled, and is {job.status}"
                self._add(Violation.WRONG_FINAL_STATE, detail, job.event_id)

    # Keys.

    def _keys(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """Return the committed runs of each key, in the order in which they committed."""
        keys: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        for handler, key, event, position in self._runs:
            if handler in ORDERED and event in self._jobs:
                keys[handler, key].append((position, event))
        return keys

    def _check_order(self, handler: str, key: str, runs: list[tuple[int, str]]) -> None:
        """Check that no two runs saw the same predecessors, and that events keep their order.

        An event precedes another if it was accepted before the other was sent. Two events that are
        recorded at the same time have no order.
        """
        for place, (position, event) in enumerate(runs):
            if position != place:
                detail = f"{handler} {key}: {event} saw {position} runs before its own, not {place}"
                self._add(Violation.OVERLAPPED, detail, event, *(runs[place - 1][1:]))
                break
        failed = list(self._failed_heads(handler, key))
        latest = ""
        for _, event in runs:
            self._check_hold(event, failed)
            if handler == Handler.CONTINUE and self._jobs[event].id in self._trial.requeued:
                continue
            if latest and self._precedes(event, latest):
                detail = f"{handler} {key}: {event} committed after {latest}"
                self._add(Violation.OUT_OF_ORDER, detail, event, latest)
            elif latest and self._jobs[event].event < self._jobs[latest].event:
                self.figures.overtaken += 1
            if not latest or self._sent[event].first_sent > self._sent[latest].first_sent:
                latest = event

    def _failed_heads(self, handler: str, key: str) -> Iterator[JobRow]:
        if handler == Handler.HOLD:
            for job in self._jobs.values():
                if (job.handler, job.key, job.status) == (handler, key, "failed"):
                    yield job

    def _check_hold(self, event: str, failed: Iterable[JobRow]) -> None:
        for head in failed:
            if self._precedes(head.event_id, event):
                detail = f"{event} committed although {head.event_id} of its key has failed"
                self._add(Violation.OUT_OF_ORDER, detail, event, head.event_id)

    def _precedes(self, first: str, second: str) -> bool:
        return self._sent[first].accepted_at < self._sent[second].first_sent

    # Limits and pauses.

    def _intervals(self) -> Iterator[Interval]:
        """Yield the runs. A run without an end lasted until its process was killed."""
        started: dict[tuple[int, str], Marker] = {}
        for marker in self._markers:
            if marker.kind == START:
                started[marker.pid, marker.event] = marker
            elif (start := started.pop((marker.pid, marker.event), None)) is not None:
                yield Interval(start.at, marker.at, start)
        for (pid, _), marker in started.items():
            self.tally["runs ended by a kill"] += 1
            yield Interval(marker.at, self._trial.killed_at.get(pid, marker.at), marker)

    def _check_concurrency(self, intervals: list[Interval]) -> None:
        """Check how many jobs run at once. A cancelled job no longer counts, though it may run."""
        cancelled = {
            job.event_id: self._trial.cancel_requests.get(job.id, float("inf"))
            for job in self._jobs.values()
            if job.status == "cancelled"
        }
        moments = []
        for run in intervals:
            end = min(run.end, cancelled.get(run.marker.event, run.end))
            if run.start < end:
                moments += [(run.start, 1, run), (end, -1, run)]
        running: set[Interval] = set()
        for at, change, run in sorted(moments, key=lambda moment: moment[:2]):
            (running.add if change > 0 else running.discard)(run)
            self.figures.max_concurrency = max(self.figures.max_concurrency, len(running))
            if len(running) > CONCURRENCY and change > 0:
                detail = f"{len(running)} jobs ran at {_clock(at)}, the limit is {CONCURRENCY}"
                self._add(
                    Violation.LIMIT_EXCEEDED, detail, *(each.marker.event for each in running)
                )

    def _check_rate(self, starts: list[float]) -> None:
        """Compare the starts in every window with a bucket that fills at the rate."""
        least = float("inf")
        for count, start in enumerate(sorted(starts)):
            least = min(least, count - RATE * start)
            in_excess = count - RATE * start - least + 1 - max(1.0, RATE * RATE_BURST_SECONDS)
            self.figures.rate_excess = max(self.figures.rate_excess, in_excess / RATE)
        if self.figures.rate_excess > JITTER_SECONDS:
            detail = (
                f"{self.figures.rate_excess * RATE:.0f} starts more than {RATE}/s in some window; "
                f"{JITTER_SECONDS * RATE:g} are allowed for late starts"
            )
            self._add(Violation.LIMIT_EXCEEDED, detail)

    def _check_pauses(self) -> None:
        for pause in self._trial.pauses:
            for marker in self._markers:
                if marker.kind != START or not pause.affects(marker):
                    continue
                if not pause.began < marker.at < pause.ended:
                    continue
                seconds = marker.at - pause.began
                longest = max(self.figures.last_start_after_pause, seconds)
                self.figures.last_start_after_pause = longest
                if seconds > PAUSE_LIMIT_SECONDS:
                    detail = f"{seconds:.1f} s after {pause.name} was paused"
                    self._add(Violation.STARTED_WHILE_PAUSED, detail, marker.event)

    # What a pass is worth.

    def _count(self, intervals: list[Interval]) -> None:
        tally, trial = self.tally, self._trial
        ordered = [job for job in self._jobs.values() if job.handler in ORDERED]
        keys = Counter((job.handler, job.key) for job in ordered)
        tally["keys with several jobs"] = sum(count > 1 for count in keys.values())
        tally["ordered jobs done"] = sum(job.status == "done" for job in ordered)
        tally["ordered jobs that were retried"] = sum(job.attempts > 1 for job in ordered)
        tally["ordered jobs that were requeued"] = sum(job.id in trial.requeued for job in ordered)
        tally["jobs behind a failed one"] = sum(job.status == "queued" for job in ordered)
        tally["worker kills in the queue"] = len(trial.killed_at)
        tally["pauses"] = len(trial.pauses)
        tally["events of a paused source"] = sum(
            pause.began < sent.first_sent and sent.accepted_at < pause.ended
            for pause in trial.pauses
            if pause.kind == "sources"
            for sent in self._sent.values()
            if sent.event.source == pause.name
        )
        cancelled = {
            job.event_id: trial.cancelled[job.id]
            for job in self._jobs.values()
            if job.id in trial.cancelled
        }
        tally["cancelled jobs"] = len(cancelled)
        tally["jobs cancelled while they ran"] = len(
            {
                run.marker.event
                for run in intervals
                if run.start < cancelled.get(run.marker.event, 0.0) <= run.end
            }
        )

    def totals(self) -> Figures:
        """Return the amounts that were checked."""
        statuses = Counter(job.status for job in self._jobs.values())
        return Figures(
            events=len(self._jobs),
            done=statuses["done"],
            failed=statuses["failed"],
            requests=len(self._sent),
            accepted=sum(not sent.is_rejected for sent in self._sent.values()),
        )

    def _timeline(self, events: Iterable[str]) -> Iterator[str]:
        """Yield all that is known about some events."""
        for event in events:
            if (sent := self._sent.get(event)) is not None:
                times = f"sent {_clock(sent.first_sent)}, accepted {_clock(sent.accepted_at)}"
                yield f"{event}, {sent.event.source}, {sent.event.behaviour or 'plain'}: {times}"
            if (job := self._jobs.get(event)) is not None:
                yield f"  {job}"
            for marker in self._by_event[event]:
                yield f"  {_clock(marker.at)} {marker.kind} in process {marker.pid}"


def _job_row(row: tuple[object, ...]) -> JobRow:
    return JobRow(*row)  # type: ignore[arg-type] # the columns of JOBS


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S.%f")
