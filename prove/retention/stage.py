"""The stage: events come and go while maintenance forgets, dies, and is done by others."""

import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from onceward.runtime.failpoints import REDIS_POINTS
from prove.experiment import Experiment
from prove.retention.ageing import Ageing
from prove.retention.archive_check import ArchiveCheck
from prove.retention.checker import RetentionChecker, Seen
from prove.retention.log import END, LOST, PRECEDENCE, VARIABLE, MaintenanceLog
from prove.retention.redis_faults import FaultyRedis
from prove.retention.workload import PairedWorkload
from prove.workbench import Workbench
from support.ledger_checker import Violation
from support.processes import ROOT, Serve

STAGE = "retention"
APP = ROOT / "prove" / "retention" / "app.py"
RETENTION_POINTS = (
    "purge.written",
    "purge.committed",
    "archive.written",
    "archive.verified",
    "archive.recorded",
)
"""The failpoints of maintenance."""

DAYS = {
    "payload_days": 1,
    "job_days": 1,
    "attempt_days": 1,
    "delivery_days": 1,
    "rejection_days": 1,
    "effect_days": 140,
    "dedupe_window_days": 20_000,
}
"""Everything that was moved into the past is older, except ids and, for a while, effects."""

KILLS = "kills in maintenance"
LATE = "late redeliveries"
MIN_LATE = 100
MIN_BATCHES = 10
"""Fewer do not reach the age at which effects are purged."""
BUSY_SECONDS = 50.0
"""The time beyond the plan's in which a busy machine may reach these counts."""
EVENTS_PER_SECOND = 60
STEP_SECONDS = 0.5
KILL_WAIT_SECONDS = 2.0
MAX_KILL_DELAY_SECONDS = 0.05
LATE_EVENTS = 40
"""Late redeliveries of one step; some of them have another body."""
CANCEL_BATCHES = 2
"""Failed jobs that are older are cancelled: the keys of their time would be kept for them."""
CANCEL_EVERY = 4
FAILPOINT_SECONDS = 8.0
"""The most time for a process to reach its failpoint: a drop that is blocked tries for six."""
SETTLED_SECONDS = 15.0
OPERATORS = 8
OPERATOR = {"actor": "ann", "reason": "given up"}
IN_FLIGHT_SECONDS = 0.3

FORGOTTEN = """
    SELECT e.event_id FROM onceward.events e
    WHERE NOT EXISTS (SELECT 1 FROM onceward.payloads p WHERE p.event = e.id)
    AND NOT EXISTS (SELECT 1 FROM onceward.jobs j WHERE j.event = e.id)
"""
KEPT = """
    SELECT j.event FROM onceward.jobs j JOIN onceward.payloads p ON p.event = j.event
    WHERE j.status = 'failed'
"""
FAILED = "SELECT id, event FROM onceward.jobs WHERE status = 'failed'"


def keep_and_forget(bench: Workbench) -> None:
    """Let maintenance forget what is old, again and again, under load and under kills."""
    with bench.stage(STAGE), bench.server() as server, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onceward-")))
        (folder / "archive").mkdir()
        settings: dict[str, Any] = {**DAYS, "archive": (folder / "archive").as_uri()}
        redis = None
        if not bench.is_sqlite:
            redis = stack.enter_context(FaultyRedis(bench.seed, bench.result.tally))
            settings["redis"] = redis.url
        experiment = stack.enter_context(
            bench.experiment(
                STAGE,
                server.create(),
                is_checked=False,
                app=APP,
                variables={VARIABLE: str(folder / "log")},
                workload=PairedWorkload(bench.seed, STAGE),
                **settings,
            )
        )
        trial = RetentionTrial(bench, experiment, folder, redis)
        trial.run_under_faults()
        trial.finish()
        trial.check()


class RetentionTrial:
    """One ledger that forgets, its archive, its Redis, and what was done to them."""

    def __init__(
        self, bench: Workbench, experiment: Experiment, folder: Path, redis: FaultyRedis | None
    ) -> None:
        self._bench = bench
        self._experiment = experiment
        self._folder = folder
        self._redis = redis
        self._ageing = Ageing(experiment.ledger)
        self._log = MaintenanceLog(folder / "log")
        self._precedence = folder / PRECEDENCE
        self._cancelled: set[int] = set()
        self._armed = 0
        """The process, by id, that will die at a failpoint."""
        self._cycle = cycle(self._points())
        self._kept: set[int] = set()
        """Old events whose payload was there while a failed job needed it."""

    # Faults.

    def run_under_faults(self) -> None:
        """Send, forget, redeliver and kill until the time is over and the kills are done."""
        plan = self._bench.plan
        seconds = plan.retention_seconds
        longest = seconds + BUSY_SECONDS
        self._experiment.send(round(EVENTS_PER_SECOND * longest), longest)
        started = time.monotonic()
        step, progress = 0, self._bench.progress(STAGE, plan.retention_kills)
        while self._is_needed(started):
            self._ageing.move_batch()
            self._note_kept()
            self._redeliver_late()
            self._check_keys()
            self._wait_for_failpoint()
            if step % CANCEL_EVERY == 0:
                self._cancel_old_jobs()
            self._kill_in_maintenance()
            self._arm()
            step += 1
            progress(self._experiment.tally[KILLS])
        self._disarm()

    def _is_needed(self, started: float) -> bool:
        """Return whether time is left, or something is missing and the longer time is not over."""
        plan, tally = self._bench.plan, self._experiment.tally
        spent = time.monotonic() - started
        if spent < plan.retention_seconds:
            return True
        is_enough = (
            tally[KILLS] >= plan.retention_kills
            and tally[LATE] >= MIN_LATE
            and self._ageing.batches >= MIN_BATCHES
            and set(self._points()) <= set(self._experiment.fleet.failpoint_kills)
        )
        return not is_enough and spent < plan.retention_seconds + BUSY_SECONDS

    def _points(self) -> tuple[str, ...]:
        return RETENTION_POINTS if self._redis is None else (*RETENTION_POINTS, *REDIS_POINTS)

    def _arm(self) -> None:
        """Replace a process by one that dies at the next failpoint."""
        fleet = self._experiment.fleet
        slot = self._rng.randrange(fleet.size.total)
        point = self._next_point(is_receiver=fleet.is_receiver(slot))
        # A week is archived once, but rows are purged in many pages.
        count = 1 if point.startswith("archive") else self._rng.randint(1, 3)
        self._precedence.touch()
        self._kill(slot, failpoints=f"{point}:kill:{count}")
        self._armed = fleet.processes[slot].pid

    def _wait_for_failpoint(self) -> None:
        """Wait until the process with a failpoint is dead. Then others do maintenance again."""
        deadline = time.monotonic() + FAILPOINT_SECONDS
        self._experiment.wait(STEP_SECONDS)
        while self._has_armed() and time.monotonic() < deadline:
            self._experiment.wait(STEP_SECONDS / 4)
        self._precedence.unlink(missing_ok=True)

    def _has_armed(self) -> bool:
        return any(process.pid == self._armed for process in self._experiment.fleet.processes)

    def _disarm(self) -> None:
        """Replace the process that would die, if there is one."""
        self._precedence.unlink(missing_ok=True)
        self._experiment.fleet.replace_exited()
        for slot, process in enumerate(self._experiment.fleet.processes):
            if process.pid == self._armed:
                self._kill(slot)

    def _next_point(self, *, is_receiver: bool) -> str:
        """Return the next failpoint; first those at which no process died yet."""
        reachable = RETENTION_POINTS if not is_receiver else self._points()
        missing = set(reachable) - set(self._experiment.fleet.failpoint_kills)
        return next(point for point in self._cycle if point in (missing or reachable))

    def _kill_in_maintenance(self) -> None:
        """Kill a process that does maintenance at this moment."""
        fleet = self._experiment.fleet
        deadline = time.monotonic() + KILL_WAIT_SECONDS
        while time.monotonic() < deadline:
            self._log.read()
            for slot, process in enumerate(fleet.processes):
                if process.pid in self._log.running and process.running:
                    time.sleep(self._rng.uniform(0, MAX_KILL_DELAY_SECONDS))  # any moment of it
                    self._kill(slot)
                    return
            time.sleep(0.005)  # polls a log: another process sends no signal when it begins

    def _kill(self, slot: int, *, failpoints: str = "") -> None:
        """Replace a process, and note whether it did maintenance."""
        fleet = self._experiment.fleet
        killed = fleet.processes[slot]
        was_running = killed.running
        fleet.replace(slot, failpoints=failpoints)
        self._log.read()
        self._experiment.tally[KILLS] += was_running and killed.pid in self._log.running
        self._experiment.tally["kills during retention"] += was_running

    # Senders and operators.

    def _redeliver_late(self) -> None:
        """Send events again of which only the row is left."""
        numbers = list(self._forgotten())
        chosen = self._rng.sample(numbers, min(LATE_EVENTS, len(numbers)))
        self._experiment.load_generator.repeat(chosen[::4], variant=1)
        del chosen[::4]
        self._experiment.load_generator.repeat(chosen)
        self._experiment.tally[LATE] += len(chosen)

    def _note_kept(self) -> None:
        newest = self._ageing.batches - CANCEL_BATCHES
        for (event,) in self._experiment.ledger.rows(KEPT):
            if self._ageing.batch_of.get(event, newest + 1) <= newest:
                self._kept.add(event)

    def _forgotten(self) -> Iterator[int]:
        workload = self._experiment.history.workload
        for (event_id,) in self._experiment.ledger.rows(FORGOTTEN):
            number = workload.number_of(event_id)
            if number is not None:
                yield number

    def _cancel_old_jobs(self) -> None:
        """Cancel failed jobs of old batches. Nobody requeues meanwhile."""
        oldest = self._ageing.batches - CANCEL_BATCHES
        batch_of = self._ageing.batch_of
        generator = self._experiment.load_generator
        generator.is_requeueing = False
        time.sleep(IN_FLIGHT_SECONDS)  # a requeue may be on its way
        failed = self._experiment.ledger.rows(FAILED)
        with ThreadPoolExecutor(OPERATORS) as operators:
            jobs = [job for job, event in failed if batch_of.get(event, oldest) < oldest]
            list(operators.map(self._cancel, jobs))
        generator.is_requeueing = True

    def _cancel(self, job: int) -> None:
        self._cancelled.add(job)
        for receiver in self._experiment.fleet.receivers[:1]:
            with suppress(httpx.TransportError):  # the process dies meanwhile
                response = receiver.http.post(f"/admin/jobs/{job}/cancel", json=OPERATOR)
                self._experiment.tally["old jobs cancelled"] += response.is_success

    def _check_keys(self) -> None:
        """Check Redis under load: at the end, redeliveries have replaced wrong keys."""
        if self._redis is not None:
            self._redis.check_if_up(self._experiment.ledger)

    # The end.

    def finish(self) -> None:
        """End all work and all faults; forget everything old; repeat every event that is left."""
        if self._redis is not None:
            self._redis.calm_down()
        self._experiment.drain()
        self._cancel_old_jobs()
        self._experiment.load_generator.is_requeueing = False
        self._ageing.move_batch()
        self._wait_for_maintenance()
        self._experiment.load_generator.repeat(
            number
            for (event_id,) in self._experiment.ledger.rows("SELECT event_id FROM onceward.events")
            if (number := self._experiment.history.workload.number_of(event_id)) is not None
        )
        self._experiment.drain()
        self._bench.result.failpoints += self._experiment.fleet.failpoint_kills

    def _wait_for_maintenance(self) -> None:
        """Wait for two whole maintenances: the first may have begun before."""
        self._log.read()
        target = self._log.counts[END] + 2

        def is_done() -> bool:
            self._log.read()
            return self._log.counts[END] >= target

        self._experiment.expect(
            is_done, "maintenance is done", SETTLED_SECONDS, otherwise=Violation.NOT_RECOVERED
        )

    # The check.

    def check(self) -> None:
        """Compare the ledger, the archive and Redis with what was sent."""
        experiment = self._experiment
        receiver = experiment.fleet.receivers[0]
        seen = Seen(self._ageing.batch_of, _states(receiver), self._cancelled)
        checker = RetentionChecker(experiment.ledger, experiment.history, seen)
        checker.check()
        experiment.figures = checker.figures
        experiment.add(checker.findings, experiment.ledger)
        archive = ArchiveCheck(experiment.ledger, self._folder / "archive")
        archive.check({id_: row.body_sha256 for id_, row in checker.gone.payloads.items()})
        experiment.add(archive.findings, experiment.ledger)
        if self._redis is not None:
            self._redis.check(experiment.ledger)
            experiment.add(self._redis.findings, experiment.ledger)
        self._count(checker, archive)

    def _count(self, checker: RetentionChecker, archive: ArchiveCheck) -> None:
        self._log.read()
        self._experiment.tally.update(
            {
                "events recorded during retention": checker.figures.events,
                "payloads dropped": len(checker.gone.payloads),
                "weeks of payloads dropped": len(checker.gone.weeks),
                "payloads kept for jobs": len(self._kept),
                "jobs purged": checker.gone.jobs,
                "redeliveries purged": checker.gone.deliveries,
                "effects purged": checker.forgotten_effects,
                "files of the archive checked": archive.files,
                "maintenances": self._log.counts[END],
                "processes that did maintenance": len(self._log.elected),
                "elections lost": self._log.counts[LOST],
            }
        )

    @property
    def _rng(self) -> random.Random:
        return self._bench.rng


def _states(receiver: Serve) -> dict[str, str]:
    """Return what the admin API says about each event."""
    return {event["event_id"]: event["processing_state"] for event in receiver.items("events")}
