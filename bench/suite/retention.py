"""Retention: what receivers notice of a purge, and what a purge leaves behind in the indexes.

The receiver is `onceward serve`, which purges in its own process, as by default. Turns with a purge
and turns without alternate on the same ledger, each with a server of its own. A purge is under way
before the receiver is warmed up. The drop of a week is over in a moment: it is held back until
requests arrive.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Self

from bench.contenders.interface import ContenderConfig
from bench.deliveries import prepare, random_ids
from bench.load_generator import LoadPlan, LoadReport
from bench.processes import (
    ContenderProcess,
    TrialFailed,
    free_port,
    read_report,
    run_role,
    send,
    sending,
)
from bench.registry import BY_NAME, ONCEWARD, POSTGRES
from bench.results import Results, Sample
from bench.run import Run, Schedule, Trial, require_success, round_order
from bench.seed_weeks import (
    History,
    deleted_rows,
    held_maintenance,
    relation_bytes,
    row_counts,
)

CONTENDER = BY_NAME[ONCEWARD]
RATE = 200.0
WARM_UP_SECONDS = 1.5
START_SECONDS = 2.0
SEED_SECONDS_PER_MILLION = 45.0
COPY_SECONDS_PER_MILLION = 15.0
PURGE_STARTS_SECONDS = 60.0
POLL_SECONDS = 0.1

MIN_PURGED_PER_SECOND = 500
"""A slower purge meets no target: it leaves receivers alone because it does next to nothing."""

KEEP_DAYS = {"payload_days": 0, "dedupe_window_days": 0, "job_days": 0}
WEEKS = 12
DROPPED_WEEKS = 5
"""The most rounds of the drop: a week each. Events are purged from these weeks afterwards."""
AGE_WEEKS = 5
"""No setting may forget an id sooner than its sender can resend it."""

STEPS = 4
"""Steps in which a round replaces all rows. Autovacuum starts after a fifth by default."""
SIZE_ROUNDS = 3
STEP_SECONDS = 8.0
RELATIONS = (
    *("events", "events_pkey", "events_once"),
    *("jobs", "jobs_pkey", "jobs_once"),
    *("deliveries_pkey", "deliveries_by_event", "attempts_pkey", "payloads"),
)
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Case:
    """One kind of maintenance, by the setting that causes it."""

    title: str
    setting: str
    table: str = ""
    """The table whose rows are counted; empty for the drop, which counts none."""

    @property
    def without(self) -> str:
        """The name of the turns without a purge."""
        return f"nothing, beside {self.title}"


DROP = Case("a week of payloads dropped", "payload_days")
EVENTS = Case("events purged", "dedupe_window_days", "events")
JOBS = Case("jobs purged", "job_days", "jobs")
CASES = (DROP, EVENTS, JOBS)
"""In this order: events go without payloads and with their jobs."""


def size_case(relation: str) -> str:
    """Return the name of a relation's sizes in the results."""
    return f"size of {relation}"


def has_purged(results: Results, case: Case) -> bool:
    """Return whether the purge went on fast enough for receivers to notice it."""
    rate = results.median(CONTENDER.name, case.title, "purged_rate")
    return not case.table or (rate is not None and rate >= MIN_PURGED_PER_SECOND)


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan the turns of every case, then the rounds of filling and purging; on PostgreSQL only."""
    prefixes = tuple(run.options.contenders)
    is_selected = not prefixes or CONTENDER.name.startswith(prefixes)
    if run.options.store != POSTGRES or not is_selected:
        return []
    if schedule.rounds > DROPPED_WEEKS:
        raise ValueError(f"retention has at most {DROPPED_WEEKS} rounds: each drops a week")
    return [*_Turns(run, schedule).plan(), *_Sizes(run).plan()]


@dataclass(frozen=True)
class _Turn:
    """A turn of a case, with maintenance or without."""

    case: Case
    round: int
    is_during: bool

    @property
    def title(self) -> str:
        return self.case.title if self.is_during else self.case.without

    @property
    def is_purge(self) -> bool:
        """Whether rows are deleted all the time, and not a week in a moment."""
        return self.is_during and self.case is not DROP


@dataclass(frozen=True)
class _Reading:
    """What is gone from a ledger so far."""

    at: float
    deleted: int
    """Rows that were ever deleted from the table of a case."""
    week_bytes: Mapping[str, int]
    """The size of each week's payloads."""

    @classmethod
    def of(cls, database: str, case: Case) -> Self:
        deleted = deleted_rows(database, case.table) if case.table else 0
        sizes = relation_bytes(database)
        weeks = {name: size for name, size in sizes.items() if name.startswith("payloads_2")}
        return cls(time.perf_counter(), deleted, weeks)

    def deleted_by(self, end: "_Reading") -> int:
        """Return the rows that were deleted between two readings."""
        return end.deleted - self.deleted

    def dropped_by(self, end: "_Reading") -> list[str]:
        """Return the weeks that have become smaller between two readings."""
        return [
            name for name, size in self.week_bytes.items() if end.week_bytes.get(name, 0) < size
        ]


class _Turns:
    """Large ledgers, on which turns with and without a purge alternate."""

    def __init__(self, run: Run, schedule: Schedule) -> None:
        self._run = run
        self._schedule = schedule
        self._turns = 0
        self._databases: dict[Case, str] = {}
        self._history = History.before(
            datetime.now(UTC), WEEKS, run.options.retention_events // WEEKS, age_weeks=AGE_WEEKS
        )

    def plan(self) -> list[Trial]:
        """Plan the seeding, and a trial for each case and round."""
        events = self._run.options.retention_events
        seconds = 2 * (START_SECONDS + WARM_UP_SECONDS + self._schedule.seconds)
        seed_seconds = SEED_SECONDS_PER_MILLION + COPY_SECONDS_PER_MILLION
        return [
            Trial(
                f"retention: seed {events:,} events",
                events / 1_000_000 * seed_seconds,
                self._seed,
            ),
            *(
                Trial(
                    f"retention, round {number + 1}: {case.title}",
                    seconds,
                    partial(self._run_round, case, number),
                )
                for case in CASES
                for number in range(self._schedule.rounds)
            ),
        ]

    def _seed(self) -> list[Sample]:
        """Seed a ledger, and a copy: purged events would leave only failed jobs behind."""
        databases = self._run.databases
        seeded = _registered_ledger(self._run)
        self._history.seed(seeded, range(WEEKS))
        databases.settle(seeded)
        self._databases = {DROP: seeded, EVENTS: seeded, JOBS: databases.copy(seeded)}
        databases.settle(self._databases[JOBS])
        return []

    def _run_round(self, case: Case, number: int) -> list[Sample]:
        turns = (_Turn(case, number, is_during=is_during) for is_during in (False, True))
        return [
            Sample(CONTENDER.name, turn.title, number, self._run_turn(turn))
            for turn in round_order(tuple(turns), number)
        ]

    def _retention(self, turn: _Turn) -> dict[str, int]:
        """Return days that drop one week, or that leave more rows to purge than a turn takes."""
        if not turn.is_during:
            return KEEP_DAYS
        week = {DROP: turn.round, EVENTS: DROPPED_WEEKS - 1, JOBS: WEEKS - 1}[turn.case]
        return KEEP_DAYS | {turn.case.setting: self._history.days_since(week)}

    def _run_turn(self, turn: _Turn) -> dict[str, float]:
        database = self._databases[turn.case]
        config = ContenderConfig(database, free_port(), retention=self._retention(turn))
        with (
            held_maintenance(database) as held,
            ContenderProcess(CONTENDER.module, "serve", config) as server,
        ):
            server.wait_until_serving()
            if turn.case is not DROP:
                held.rollback()
            if turn.is_purge:
                _wait_until_purging(database, turn.case, server)
            self._run.databases.checkpoint(database)
            warm_up, measured = self._load_plans(config)
            require_success(send(warm_up), server)
            before = _Reading.of(database, turn.case)
            with sending(measured) as generator:
                time.sleep(measured.seconds / 4)  # requests arrive before the week is dropped
                held.rollback()
                report = require_success(read_report(generator), server)
            after = _Reading.of(database, turn.case)
            if problem := self._problem(turn, before, after):
                raise TrialFailed(f"{problem}: {turn.title}\n{server.log}")
        deleted = before.deleted_by(after)
        purged = {"purged_rate": deleted / (after.at - before.at)} if deleted else {}
        return _values(report) | purged

    def _problem(self, turn: _Turn, before: _Reading, after: _Reading) -> str | None:
        """Return what should have gone in a turn with maintenance, or stayed in another."""
        deleted, dropped = before.deleted_by(after), before.dropped_by(after)
        week = f"payloads_{self._history.weeks[turn.round].label}"
        if not turn.is_during and (deleted or dropped):
            return f"{deleted} rows were purged, and {dropped or 'no week'} dropped"
        if turn.is_purge and not deleted:
            return "nothing was purged"
        if turn.is_during and turn.case is DROP and week not in dropped:
            return f"{week} was not dropped"
        return None

    def _load_plans(self, config: ContenderConfig) -> tuple[LoadPlan, LoadPlan]:
        """Return a plan to warm up and a plan to measure, both with events of their own."""
        self._turns += 1
        warm_up, measured = (
            int(RATE * seconds) for seconds in (WARM_UP_SECONDS, self._schedule.seconds)
        )
        file = self._run.folder / "retention"
        ids = random_ids(warm_up + measured, seed=2_000_000 + self._turns)
        deliveries = prepare(file, ids)
        return (
            self._run.load_plan(config, deliveries, WARM_UP_SECONDS, rate=RATE, count=warm_up),
            self._run.load_plan(
                config, deliveries, self._schedule.seconds, rate=RATE, skip=warm_up
            ),
        )


def _wait_until_purging(database: str, case: Case, server: ContenderProcess) -> None:
    """Wait until rows are being deleted. Raises TrialFailed."""
    first = deleted_rows(database, case.table)
    deadline = time.monotonic() + PURGE_STARTS_SECONDS
    while deleted_rows(database, case.table) <= first:
        server.check()
        if time.monotonic() > deadline:
            limit = f"{PURGE_STARTS_SECONDS:g} s"
            raise TrialFailed(f"nothing was purged in {limit}: {case.title}\n{server.log}")
        time.sleep(POLL_SECONDS)  # PostgreSQL's count is up to a second old


def _values(report: LoadReport) -> dict[str, float]:
    return {
        "rate": report.rate,
        "p50_ms": report.p50_ms,
        "p99_ms": report.p99_ms,
        "max_ms": report.max_ms,
    }


class _Sizes:
    """A ledger whose rows are replaced again and again, beside a fresh one with the same rows."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps = STEPS * (SIZE_ROUNDS + 1)
        self._database = ""
        events = run.options.retention_live_events // STEPS
        self._history = History.before(datetime.now(UTC), self._steps, events, age_weeks=AGE_WEEKS)

    def plan(self) -> list[Trial]:
        """Plan a trial for each round."""
        return [
            Trial(
                f"retention: sizes, round {number + 1}",
                STEPS * STEP_SECONDS,
                partial(self._run_round, number),
            )
            for number in range(SIZE_ROUNDS)
        ]

    def _run_round(self, number: int) -> list[Sample]:
        first = number * STEPS
        if not number:
            self._database = _registered_ledger(self._run)
            self._history.seed_in_order(self._database, range(STEPS))
        for old in range(first, first + STEPS):
            self._history.seed_in_order(self._database, [old + STEPS])
            self._purge_until(old)
            self._run.databases.settle(self._database)
        fresh = self._fresh_ledger(first + STEPS)
        _check_same_rows(self._database, fresh)
        used_mb, fresh_mb = (_sizes_mb(database) for database in (self._database, fresh))
        self._run.databases.drop(fresh)
        return [
            Sample(
                CONTENDER.name,
                size_case(relation),
                number,
                {"mb": used_mb[relation], "fresh_mb": fresh_mb[relation]},
            )
            for relation in RELATIONS
        ]

    def _purge_until(self, week: int) -> None:
        """Drop the payloads of a week, then purge its events."""
        days = self._history.days_since(week)
        retention = KEEP_DAYS | {"payload_days": days, "dedupe_window_days": days}
        config = ContenderConfig(self._database, retention=retention)
        run_role(CONTENDER.module, "maintain", config)

    def _fresh_ledger(self, first: int) -> str:
        """Return a ledger that never had more than the survivors of weeks before `first`."""
        fresh = _registered_ledger(self._run)
        self._history.seed_survivors(fresh, range(first))
        self._history.seed_in_order(fresh, range(first, first + STEPS))
        self._run.databases.settle(fresh)
        return fresh


def _check_same_rows(used: str, fresh: str) -> None:
    """Raise TrialFailed if a ledger has other rows than a fresh one: it was not purged."""
    used_rows, fresh_rows = row_counts(used), row_counts(fresh)
    if used_rows != fresh_rows:
        raise TrialFailed(f"the purged ledger has {used_rows}, the fresh one {fresh_rows}")


def _registered_ledger(run: Run) -> str:
    """Return an empty ledger that knows the source and the handler."""
    database = run.databases.copy(run.template(CONTENDER))
    config = ContenderConfig(database, free_port())
    with ContenderProcess(CONTENDER.module, "serve", config) as server:
        server.wait_until_serving()
    return database


def _sizes_mb(database: str) -> dict[str, float]:
    """Return the sizes of tables and indexes. The partitions of the payloads count as one."""
    sizes = relation_bytes(database)
    sizes["payloads"] = sum(size for name, size in sizes.items() if name.startswith("payloads_"))
    return {name: size / MEGABYTE for name, size in sizes.items()}
