"""The state of one run: options, databases, prepared requests and deployed contenders."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from bench.contenders.interface import ContenderConfig
from bench.databases import Databases
from bench.deliveries import Deliveries, prepare, random_ids
from bench.load_generator import LoadPlan, LoadReport
from bench.processes import ContenderProcess, TrialFailed, free_port, run_role, send
from bench.registry import Contender, select
from bench.results import Sample
from bench.seed import ID_ORDERS
from support.redis import RedisServer

# More than the empty endpoint accepts, so that no burst runs out of requests. Only a burst of the
# bare protocol may; it then ends early.
REQUESTS_PER_SECOND = 40_000
WARM_UP_SECONDS = 0.7
WARM_UP_REQUESTS = 15_000
ENQUEUE_SECONDS = 600.0

T = TypeVar("T")


@dataclass(frozen=True)
class Schedule:
    """How often and how long a benchmark measures each contender."""

    rounds: int
    seconds: float = 1.0

    def bursts(self, max_seconds: float) -> "Bursts":
        """Divide the seconds of a round into equal bursts."""
        count = max(1, round(self.seconds / max_seconds))
        return Bursts(count, self.seconds / count)


@dataclass(frozen=True)
class Bursts:
    """How many bursts of load each contender gets in a round, and how long each is."""

    count: int
    seconds: float


@dataclass(frozen=True)
class Options:
    """The store, the contenders and the sizes of a run."""

    store: str = "postgres"
    contenders: Sequence[str] = ()
    """Prefixes of names; all contenders if empty."""
    connections: int = 64
    max_jobs: int | None = None
    growth_events: Sequence[int] = (2_000_000,)
    growth_ids: Sequence[str] = ID_ORDERS[1:]
    backlog_events: int = 500_000
    retention_events: int = 5_000_000
    retention_live_events: int = 120_000


@dataclass(frozen=True)
class Trial:
    """One uninterrupted part of a benchmark, with an estimate of its duration."""

    label: str
    seconds: float
    run: Callable[[], list[Sample]]


@dataclass(frozen=True)
class Receiver:
    """A contender that is serving."""

    contender: Contender
    config: ContenderConfig
    server: ContenderProcess


@dataclass
class Run:
    """The state that the benchmarks of a run share."""

    options: Options
    databases: Databases
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="onceward-bench-")))
    redis_servers: dict[int, RedisServer] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _deliveries: dict[int, Deliveries] = field(default_factory=dict)
    _templates: dict[str, str] = field(default_factory=dict)
    _queued: dict[tuple[str, int], str] = field(default_factory=dict)

    def close(self) -> None:
        """Delete the prepared requests."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def contenders(self, benchmark: str) -> list[Contender]:
        """Return the contenders of a benchmark that can run here."""
        found = select(benchmark, self.options.store, self.options.contenders)
        return [contender for contender in found if contender.missing_requirement() is None]

    # Requests, prepared once and sent to every contender.

    def deliveries(self, count: int) -> Deliveries:
        """Return a file with so many requests, each with an id of its own."""
        if count not in self._deliveries:
            file = self.folder / f"deliveries-{count}"
            self._deliveries[count] = prepare(file, random_ids(count, seed=count))
        return self._deliveries[count]

    def load_plan(
        self, config: ContenderConfig, deliveries: Deliveries, seconds: float, **more: Any
    ) -> LoadPlan:
        """Return a plan to send requests to a contender."""
        return LoadPlan(
            port=config.port,
            file=str(deliveries.file),
            request_bytes=deliveries.request_bytes,
            seconds=seconds,
            **{"connections": self.options.connections} | more,
        )

    # Databases, prepared once and copied for each trial.

    def template(self, contender: Contender) -> str:
        """Return a database with the contender's empty tables."""
        if contender.module not in self._templates:
            database = self.databases.create()
            run_role(contender.module, "create-tables", ContenderConfig(database))
            self.databases.settle(database)
            self._templates[contender.module] = database
        return self._templates[contender.module]

    def queued(self, contender: Contender, jobs: int) -> str:
        """Return a database with queued jobs."""
        if contender.has_redis:
            return self.template(contender)  # Redis holds the queue, and starts with the trial
        if (contender.module, jobs) not in self._queued:
            database = self.databases.copy(self.template(contender))
            self.enqueue(contender, ContenderConfig(database, port=free_port()), jobs)
            self.databases.settle(database)
            self._queued[contender.module, jobs] = database
        return self._queued[contender.module, jobs]

    def jobs(self, contender: Contender) -> int:
        """Return how many jobs to queue for a contender."""
        return min(contender.jobs, self.options.max_jobs or contender.jobs)

    def enqueue(self, contender: Contender, config: ContenderConfig, jobs: int) -> None:
        """Queue jobs for a contender; for Onceward, through its receiver."""
        if not contender.is_onceward:
            run_role(contender.module, "enqueue", config, str(jobs))
            return
        deliveries = self.deliveries(jobs)
        with ContenderProcess(contender.module, "serve", config) as server:
            server.wait_until_serving()
            require_success(send(self.load_plan(config, deliveries, ENQUEUE_SECONDS)), server)

    # Contenders, each on a fresh copy.

    @contextmanager
    def deployed(
        self, contender: Contender, template: str | None = None, **more: Any
    ) -> Iterator[ContenderConfig]:
        """Give a contender a port, a fresh copy of a database, and a Redis server if it has one."""
        with self._database(contender, template) as database, self._redis(contender) as redis_port:
            yield ContenderConfig(
                database,
                port=free_port(),
                redis_port=redis_port,
                concurrency=contender.concurrency,
                transaction=contender.transaction,
                batch_size=contender.batch_size,
                has_worker=contender.has_worker,
                **more,
            )

    @contextmanager
    def _database(self, contender: Contender, template: str | None) -> Iterator[str]:
        if not contender.has_database:
            yield ""
            return
        with self._lock:
            database = self.databases.copy(template or self.template(contender))
        try:
            self.databases.settle(database)
            yield database
        finally:
            self.databases.drop(database)

    @contextmanager
    def _redis(self, contender: Contender) -> Iterator[int]:
        if not contender.has_redis:
            yield 0
            return
        with RedisServer(free_port(), *contender.redis_options, prefer_wheel=True) as server:
            self.redis_servers[server.port] = server
            yield server.port

    @contextmanager
    def serving(self, contender: Contender, config: ContenderConfig) -> Iterator[ContenderProcess]:
        """Run the contender's receiver, warmed up."""
        with ContenderProcess(contender.module, "serve", config) as server:
            server.wait_until_serving()
            deliveries = self.deliveries(WARM_UP_REQUESTS)
            plan = self.load_plan(config, deliveries, WARM_UP_SECONDS)
            require_success(send(plan), server)
            yield server

    @contextmanager
    def receiver(self, contender: Contender) -> Iterator[Receiver]:
        """Deploy a contender and run its receiver, warmed up."""
        with self.deployed(contender) as config, self.serving(contender, config) as server:
            yield Receiver(contender, config, server)


def alternate(items: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield every item in every round, in reverse order in every second round."""
    for number in range(rounds):
        for item in round_order(items, number):
            yield number, item


def round_order(items: Sequence[T], number: int) -> Iterator[T]:
    """Return the items in the order of a round."""
    return iter(items) if number % 2 == 0 else reversed(items)


def require_success(report: LoadReport, server: ContenderProcess) -> LoadReport:
    """Return a report if all responses were 2xx. Raises TrialFailed."""
    if report.rejected or report.is_cut_off:
        raise TrialFailed(f"not every request was accepted: {report.statuses}\n{server.log}")
    return report
