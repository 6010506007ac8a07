"""What every stage on one store needs: its plan, databases, experiments, times and results."""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prove.checker import Figures
from prove.experiment import Delay, Experiment
from prove.fleet import FleetSize
from prove.plan import Plan
from prove.process_faults import Target
from prove.sabotage import Sabotage, active_sabotage
from support.disks import DiskUnavailable
from support.ledger_checker import Finding, Findings, Violation
from support.memory import TEMPORARY
from support.postgres import Cluster
from support.processes import ConditionTimeout, StartupFailed
from support.programs import ProgramMissing

POSTGRES_FLEET = FleetSize(receivers=2, workers=2)
SQLITE_FLEET = FleetSize()
SQLITE_FILE = "onceward.db"


class Show(Protocol):
    """A display of the progress of a stage."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` is reached."""


@dataclass
class StoreResult:
    """The faults injected into one store, the amounts checked, and the findings."""

    store: str
    tally: Counter[str] = field(default_factory=Counter)
    failpoints: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Figures] = field(default_factory=dict)
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    counts: Counter[Violation] = field(default_factory=Counter)
    delays: dict[str, Delay] = field(default_factory=dict)
    """The longest time of each kind until something worked again."""
    notes: list[str] = field(default_factory=list)
    """Outcomes that are neither a finding nor a count."""
    seconds: dict[str, float] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def ran(self, stage: str) -> bool:
        """Return whether a stage was run."""
        return stage in self.seconds and stage not in self.not_run


class Workbench:
    """The tools of the stages of one store, and their common result."""

    def __init__(self, store: str, plan: Plan, *, seed: int, show: Show) -> None:
        self.result = StoreResult(store)
        self.plan = plan.stores[store]
        self.overrun = plan.overrun
        self.seed = seed
        self.is_sqlite = store == "sqlite"
        self.rng = random.Random(f"{seed}/{store}")  # noqa: S311 - reproducible
        self._show = show
        self._is_durable = active_sabotage() is not Sabotage.WEAK_SYNC

    @property
    def options(self) -> list[str]:
        """Return the options of the commands that start the service."""
        return [] if self._is_durable else ["--allow-weak-durability"]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, and record why it could not run or did not finish."""
        self._show(name, 0, 0)
        try:
            with self.timed(name):
                yield
        except (DiskUnavailable, ProgramMissing) as error:
            self.result.not_run[name] = str(error)
        except (StartupFailed, ConditionTimeout) as error:
            self.add_finding(name, Violation.NOT_RECOVERED, str(error))

    @contextmanager
    def experiment(
        self,
        name: str,
        url: str,
        *,
        direct_url: str | None = None,
        is_checked: bool = True,
        **options: Any,
    ) -> Iterator[Experiment]:
        """Run a service under load on a database, and check the ledger afterwards."""
        size = SQLITE_FLEET if self.is_sqlite else POSTGRES_FLEET
        experiment = Experiment(
            name, url, size, *self.options, seed=self.seed, direct_url=direct_url, **options
        )
        try:
            with experiment:
                yield experiment
            if is_checked:
                with self.timed("check"):
                    experiment.check()
        finally:
            self._collect(name, experiment)

    def _collect(self, name: str, experiment: Experiment) -> None:
        """Keep the results, also of an experiment that was given up."""
        self.result.tally += experiment.tally
        self.result.figures[name] = experiment.figures
        for what, delay in experiment.delays.items():
            self.add_delay(what, *delay)
        self.add(name, experiment.findings)

    def add_delay(self, what: str, seconds: float, limit_seconds: float) -> None:
        """Keep the longest time of each kind."""
        delay = Delay(round(seconds, 2), limit_seconds)
        self.result.delays[what] = max(delay, self.result.delays.get(what, delay))

    def add(self, stage: str, findings: Findings) -> None:
        """Add the findings of a stage to the result."""
        self.result.findings += [(stage, finding) for finding in findings.items]
        self.result.counts += findings.counts

    def add_finding(self, stage: str, violation: Violation, detail: str) -> None:
        """Add one finding that is not about an event."""
        findings = Findings()
        findings.add(violation, detail)
        self.add(stage, findings)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of the block to the times of the result."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = self.result.seconds.get(name, 0.0) + time.monotonic() - started
            self.result.seconds[name] = round(spent, 1)

    def target(self, name: str, count: int, seconds: float) -> Target:
        """Return how often to inject a fault, with its limit of time."""
        progress = self.progress(name, count)
        return Target(count, seconds, seconds * self.overrun, self.rng, progress)

    def progress(self, stage: str, total: int) -> Callable[[int], None]:
        """Return a function that shows how much of a stage is done."""
        return lambda done: self._show(stage, done, total)

    @contextmanager
    def server(
        self,
        folder: Path = TEMPORARY,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Iterator["DatabaseServer"]:
        """Start a database server whose data is below a folder."""
        with ExitStack() as stack:
            if self.is_sqlite:
                temporary = tempfile.TemporaryDirectory(prefix="onceward-", dir=folder)
                path = Path(stack.enter_context(temporary))
                yield DatabaseServer(None, path, is_durable=self._is_durable)
            else:
                overrides = {} if self._is_durable else {"fsync": "off"}
                server = Cluster(
                    folder, settings={**(settings or {}), **overrides}, environment=environment
                )
                cluster = stack.enter_context(server)
                yield DatabaseServer(cluster, cluster.folder)


class DatabaseServer:
    """A PostgreSQL server, or a folder for an SQLite file."""

    def __init__(self, cluster: Cluster | None, folder: Path, *, is_durable: bool = True) -> None:
        self.cluster = cluster
        self.path_on_disk = folder.name if cluster else f"{folder.name}/{SQLITE_FILE}"
        """The path of the data, relative to the folder that contains the server."""
        self._is_durable = is_durable
        self._folder = folder

    @property
    def postgres(self) -> Cluster:
        """Return the PostgreSQL server. The store must be PostgreSQL."""
        assert self.cluster is not None
        return self.cluster

    def start(self) -> None:
        """Start the server if it is down, as an operator would."""
        if self.cluster is not None:
            self.cluster.start()

    def create(self) -> str:
        """Create a database and return its URL."""
        if self.cluster is None:
            query = "" if self._is_durable else "?synchronous=off"
            return f"sqlite:///{self._folder / SQLITE_FILE}{query}"
        return self.cluster.create_database()
