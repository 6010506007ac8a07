"""The stages of the proof for one store, each on a database of its own."""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prove import process_faults, storage_faults
from prove.checker import Figures
from prove.experiment import Experiment
from prove.failpoint_sweep import FailpointSweep
from prove.fleet import FleetSize
from prove.plan import Plan
from prove.process_faults import Target
from prove.sabotage import Sabotage, active_sabotage
from support.disks import DiskUnavailable, image_disk, small_disk
from support.ledger_checker import Finding, Violation
from support.postgres import TEMPORARY, Cluster
from support.processes import ConditionTimeout, StartupFailed
from support.proxy import Proxy

POSTGRES_FLEET = FleetSize(receivers=2, workers=2)
SQLITE_FLEET = FleetSize()
SQLITE_FILE = "onceward.db"
OUTAGE_EVENTS = 400
OUTAGE_SECONDS = 2.0
POWER_CUT_EVENTS_PER_SECOND = 250
SENT_PER_RECORDED = 1.04
"""Invalid events are rejected, so a few more are sent than recorded."""

# Frequent checkpoints keep the recovery after a crash short.
SERVER = {"max_wal_size": "128MB", "checkpoint_timeout": "30s"}
SMALL_SERVER = {"max_wal_size": "32MB", "min_wal_size": "32MB"}


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
    seconds: dict[str, float] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)


class StageRunner:
    """Runs the stages of one store, one after another."""

    def __init__(self, store: str, plan: Plan, *, seed: int, show: Show) -> None:
        self.result = StoreResult(store)
        self._plan = plan.stores[store]
        self._overrun = plan.overrun
        self._seed = seed
        self._show = show
        self._is_durable = active_sabotage() is not Sabotage.WEAK_SYNC
        self._is_sqlite = store == "sqlite"
        self._rng = random.Random(f"{seed}/{store}")  # noqa: S311 - reproducible

    def run(self) -> StoreResult:
        """Run every stage that applies to the store."""
        self.storm()
        if not self._is_sqlite:
            self.lost_commits()
        self.full_disk()
        self.power_cuts()
        self.failpoints()
        return self.result

    def storm(self) -> None:
        """Run without faults, then crash, kill and suspend, all over one ledger under load."""
        lease_seconds = process_faults.BASELINE_LEASE_SECONDS
        with (
            self._stage("storm"),
            self._server(settings=SERVER) as server,
            self._experiment("storm", server.create(), lease_seconds=lease_seconds) as experiment,
        ):
            self._storm(experiment, server.cluster)

    def _storm(self, experiment: Experiment, cluster: Cluster | None) -> None:
        plan = self._plan
        with self._phase(experiment, "baseline", plan.baseline_seconds):
            process_faults.run_baseline(experiment, plan.baseline_seconds)
        if cluster is not None and plan.crashes:
            with self._phase(experiment, "crashes", plan.crash_seconds):
                target = self._target("crashes", plan.crashes, plan.crash_seconds)
                storage_faults.crash_server(experiment, cluster, target)
        experiment.fleet.restart(lease_seconds=process_faults.LEASE_SECONDS)
        if plan.kills:
            with self._phase(experiment, "kills", plan.kill_seconds):
                target = self._target("kills", plan.kills, plan.kill_seconds)
                process_faults.kill_processes(experiment, target)
        if plan.zombies:
            with self._timed("zombies"):
                target = self._target("zombies", plan.zombies, plan.zombie_seconds)
                process_faults.make_zombies(experiment, target)
        with self._timed("drain"):
            experiment.drain()

    def lost_commits(self) -> None:
        """Lose responses of the database; SQLite has no connection to cut."""
        count = self._plan.lost_commits
        with self._stage("lost commits"), self._server() as server:
            url = server.create()
            with (
                Proxy(url) as proxy,
                self._experiment("lost", proxy.url, direct_url=url) as experiment,
            ):
                experiment.send(100 * OUTAGE_EVENTS, 100 * OUTAGE_SECONDS)
                experiment.wait_until_recovered()
                progress = self._progress("lost commits", count)
                storage_faults.lose_commits(experiment, proxy, count, progress)
                experiment.drain()

    def full_disk(self) -> None:
        """Fill the disk of the database, and free it again."""
        megabytes = 24 if self._is_sqlite else 160
        with (
            self._stage("full disk"),
            small_disk(megabytes) as disk,
            self._server(disk, SMALL_SERVER) as server,
            self._experiment("full", server.create(), commit_timeout_seconds=0.5) as experiment,
        ):
            experiment.send(100 * OUTAGE_EVENTS, 100 * OUTAGE_SECONDS)
            experiment.wait_until_recovered(OUTAGE_EVENTS // 2)
            storage_faults.fill_disk(experiment, disk, server.start)
            experiment.wait_until_recovered(OUTAGE_EVENTS // 2)
            experiment.drain()

    def power_cuts(self) -> None:
        """Cut the power repeatedly, on a disk that keeps only data that was synced."""
        plan = self._plan
        deadline = time.monotonic() + plan.cut_seconds * self._overrun
        progress = self._progress("power cuts", plan.power_cuts)
        with (
            self._stage("power cuts"),
            image_disk(512) as disk,
            self._server(disk.mount, SMALL_SERVER) as server,
            self._experiment("cut", server.create()) as experiment,
        ):
            while experiment.tally["power cuts"] < plan.power_cuts:
                if time.monotonic() > deadline:
                    break
                disk.sync()
                experiment.send(10**6, 10**6 / POWER_CUT_EVENTS_PER_SECOND)
                experiment.wait(self._rng.uniform(0.2, 0.8))
                experiment.wait_until_recovered()
                storage_faults.cut_power(experiment, disk, server.cluster, server.path_on_disk)
                progress(experiment.tally["power cuts"])
            experiment.drain()

    def failpoints(self) -> None:
        """Kill at every failpoint."""
        with self._stage("failpoints"), self._server() as server:
            sweep = FailpointSweep(server.create(), self._seed)
            sweep.run(self._progress("failpoints", 0))
            self.result.failpoints += sweep.kills
            self.result.figures["failpoints"] = sweep.figures
            counts = Counter(finding.violation for finding in sweep.findings)
            self._add("failpoints", sweep.findings, counts)

    @contextmanager
    def _experiment(
        self, name: str, url: str, direct_url: str | None = None, **settings: float | str
    ) -> Iterator[Experiment]:
        """Run a service under load on a database, and check the ledger afterwards."""
        options = [] if self._is_durable else ["--allow-weak-durability"]
        size = SQLITE_FLEET if self._is_sqlite else POSTGRES_FLEET
        experiment = Experiment(
            name, url, size, *options, seed=self._seed, direct_url=direct_url, **settings
        )
        with experiment:
            yield experiment
        with self._timed("check"):
            experiment.check()
        self.result.tally += experiment.tally
        self.result.figures[name] = experiment.figures
        self._add(name, experiment.findings.items, experiment.findings.counts)

    def _add(self, stage: str, findings: list[Finding], counts: Counter[Violation]) -> None:
        self.result.findings += [(stage, finding) for finding in findings]
        self.result.counts += counts

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Time a stage, and record why it could not run or did not finish."""
        self._show(name, 0, 0)
        try:
            with self._timed(name):
                yield
        except DiskUnavailable as error:
            self.result.not_run[name] = str(error)
        except (StartupFailed, ConditionTimeout) as error:
            violation = Violation.NOT_RECOVERED
            self._add(name, [Finding(violation, str(error))], Counter([violation]))

    @contextmanager
    def _phase(self, experiment: Experiment, name: str, seconds: float) -> Iterator[None]:
        """Send a share of the storm's events, and wait at the end until they were sent."""
        events = self._plan.events * seconds / self._plan.load_seconds
        experiment.send(round(events * SENT_PER_RECORDED), seconds)
        deadline = time.monotonic() + seconds * self._overrun
        with self._timed(name):
            yield
            experiment.wait_until_sent(deadline)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            spent = self.result.seconds.get(name, 0.0) + time.monotonic() - started
            self.result.seconds[name] = round(spent, 1)

    def _target(self, name: str, count: int, seconds: float) -> Target:
        progress = self._progress(name, count)
        return Target(count, seconds, seconds * self._overrun, self._rng, progress)

    def _progress(self, stage: str, total: int) -> Callable[[int], None]:
        return lambda done: self._show(stage, done, total)

    @contextmanager
    def _server(
        self, folder: Path = TEMPORARY, settings: Mapping[str, str] | None = None
    ) -> Iterator["DatabaseServer"]:
        """Start a database server whose data is below a folder."""
        with ExitStack() as stack:
            if self._is_sqlite:
                temporary = tempfile.TemporaryDirectory(prefix="onceward-", dir=folder)
                path = Path(stack.enter_context(temporary))
                yield DatabaseServer(None, path, is_durable=self._is_durable)
            else:
                overrides = {} if self._is_durable else {"fsync": "off"}
                server = Cluster(folder, settings={**(settings or {}), **overrides})
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
