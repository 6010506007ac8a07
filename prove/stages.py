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

from prove import faults, outages
from prove.checker import Figures, Finding, Rule
from prove.disks import NoDisk, image_disk, small_disk
from prove.fleet import Shape
from prove.plan import Plan
from prove.sabotage import Sabotage, chosen
from prove.sweep import Sweep
from prove.trial import Trial
from support.postgres import TEMPORARY, Cluster
from support.processes import Died, TooLate
from support.proxy import Proxy

MANY = Shape(receivers=2, workers=2)
ONE = Shape()
FILE = "onceward.db"
OUTAGE_EVENTS = 400
OUTAGE_SECONDS = 2.0
CUT_EVENTS_A_SECOND = 250
IDS_AN_EVENT = 1.04
"""A few requests are refused, and make none."""

# A crash is followed by a short recovery, however much was written before.
SERVER = {"max_wal_size": "128MB", "checkpoint_timeout": "30s"}
SMALL_SERVER = {"max_wal_size": "32MB", "min_wal_size": "32MB"}


class Show(Protocol):
    """Shows how far a stage is."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """So much of it is done."""


@dataclass
class Result:
    """What a store went through, and what was found."""

    store: str
    tally: Counter[str] = field(default_factory=Counter)
    failpoints: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Figures] = field(default_factory=dict)
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    counts: Counter[Rule] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)


class Stages:
    """All stages of one store, one after the other."""

    def __init__(self, store: str, plan: Plan, *, seed: int, show: Show) -> None:
        self.result = Result(store)
        self._plan = plan.stores[store]
        self._patience = plan.patience
        self._seed = seed
        self._show = show
        self._is_weak = chosen() is Sabotage.WEAK_SYNC
        self._is_sqlite = store == "sqlite"
        self._dice = random.Random(f"{seed}/{store}")  # noqa: S311 - the same each time

    def run(self) -> Result:
        """All of them."""
        self.storm()
        if not self._is_sqlite:
            self.lost_commits()
        self.full_disk()
        self.power_cuts()
        self.failpoints()
        return self.result

    def storm(self) -> None:
        """Calm, crashes, kills and zombies, over one ledger under one load."""
        lease = faults.CALM_LEASE_SECONDS
        with (
            self._stage("storm"),
            self._server(settings=SERVER) as server,
            self._trial("storm", server.database(), lease_seconds=lease) as trial,
        ):
            self._storm(trial, server.cluster)

    def _storm(self, trial: Trial, cluster: Cluster | None) -> None:
        plan = self._plan
        with self._part(trial, "calm", plan.calm_seconds):
            faults.keep_calm(trial, plan.calm_seconds)
        if cluster is not None and plan.crashes:
            with self._part(trial, "crashes", plan.crash_seconds):
                aim = self._aim("crashes", plan.crashes, plan.crash_seconds)
                faults.crash_server(trial, cluster, aim)
        trial.town.change(lease_seconds=faults.LEASE_SECONDS)
        if plan.kills:
            with self._part(trial, "kills", plan.kill_seconds):
                faults.kill(trial, self._aim("kills", plan.kills, plan.kill_seconds))
        if plan.zombies:
            with self._timed("zombies"):
                aim = self._aim("zombies", plan.zombies, plan.zombie_seconds)
                faults.make_zombies(trial, aim)
        with self._timed("rest"):
            trial.rest()

    def lost_commits(self) -> None:
        """Answers to COMMIT that never arrive; only PostgreSQL is at the end of a line."""
        with self._stage("lost commits"), self._server() as server:
            url = server.database()
            with Proxy(url) as proxy, self._trial("lost", proxy.url, direct_url=url) as trial:
                trial.load(100 * OUTAGE_EVENTS, 100 * OUTAGE_SECONDS)
                trial.wait_until_back()
                show = self._shown("lost commits", self._plan.lost_commits)
                outages.lose_commits(trial, proxy, self._plan.lost_commits, show)
                trial.rest()

    def full_disk(self) -> None:
        """No room on the disk, and then room again."""
        megabytes = 24 if self._is_sqlite else 160
        with (
            self._stage("full disk"),
            small_disk(megabytes) as disk,
            self._server(disk, SMALL_SERVER) as server,
            self._trial("full", server.database(), commit_timeout_seconds=0.5) as trial,
        ):
            trial.load(100 * OUTAGE_EVENTS, 100 * OUTAGE_SECONDS)
            trial.wait_until_back(OUTAGE_EVENTS // 2)
            outages.fill_disk(trial, disk, server.start)
            trial.wait_until_back(OUTAGE_EVENTS // 2)
            trial.rest()

    def power_cuts(self) -> None:
        """The power is cut, again and again, on a disk that keeps only what was synced."""
        plan = self._plan
        deadline = time.monotonic() + plan.cut_seconds * self._patience
        show = self._shown("power cuts", plan.power_cuts)
        with (
            self._stage("power cuts"),
            image_disk(512) as disk,
            self._server(disk.place, SMALL_SERVER) as server,
            self._trial("cut", server.database()) as trial,
        ):
            while trial.tally["power cuts"] < plan.power_cuts:
                if time.monotonic() > deadline:
                    break
                disk.sync()
                trial.load(10**6, 10**6 / CUT_EVENTS_A_SECOND)
                trial.wait(self._dice.uniform(0.2, 0.8))
                trial.wait_until_back()
                outages.cut_power(trial, disk, server.cluster, server.on_disk)
                show(trial.tally["power cuts"])
            trial.rest()

    def failpoints(self) -> None:
        """A kill at every failpoint."""
        with self._stage("failpoints"), self._server() as server:
            sweep = Sweep(server.database(), self._seed)
            sweep.run(self._shown("failpoints", 0))
            self.result.failpoints += sweep.kills
            self.result.figures["failpoints"] = sweep.figures
            self._add("failpoints", sweep.findings, Counter(f.rule for f in sweep.findings))

    @contextmanager
    def _trial(
        self, name: str, url: str, direct_url: str | None = None, **settings: float | str
    ) -> Iterator[Trial]:
        """A service under load on a database; checked when it has come to rest."""
        options = ["--allow-weak-durability"] if self._is_weak else []
        shape = ONE if self._is_sqlite else MANY
        trial = Trial(
            name, url, shape, *options, seed=self._seed, direct_url=direct_url, **settings
        )
        with trial:
            yield trial
        with self._timed("check"):
            trial.check()
        self.result.tally += trial.tally
        self.result.figures[name] = trial.figures
        self._add(name, trial.findings.items, trial.findings.counts)

    def _add(self, stage: str, findings: list[Finding], counts: Counter[Rule]) -> None:
        self.result.findings += [(stage, finding) for finding in findings]
        self.result.counts += counts

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Notes why a stage was not run, or how it broke off."""
        self._show(name, 0, 0)
        try:
            with self._timed(name):
                yield
        except NoDisk as error:
            self.result.not_run[name] = str(error)
        except (Died, TooLate) as error:
            self._add(name, [Finding(Rule.NOT_BACK, str(error))], Counter([Rule.NOT_BACK]))

    @contextmanager
    def _part(self, trial: Trial, name: str, seconds: float) -> Iterator[None]:
        """A part of the storm, with its share of the events: it ends when they are sent."""
        events = self._plan.events * seconds / self._plan.load_seconds
        trial.load(round(events * IDS_AN_EVENT), seconds)
        deadline = time.monotonic() + seconds * self._patience
        with self._timed(name):
            yield
            trial.wait_until_sent(deadline)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            spent = self.result.seconds.get(name, 0.0) + time.monotonic() - begun
            self.result.seconds[name] = round(spent, 1)

    def _aim(self, name: str, count: int, seconds: float) -> faults.Aim:
        show = self._shown(name, count)
        return faults.Aim(count, seconds, seconds * self._patience, self._dice, show)

    def _shown(self, stage: str, total: int) -> Callable[[int], None]:
        return lambda done: self._show(stage, done, total)

    @contextmanager
    def _server(
        self, folder: Path = TEMPORARY, settings: Mapping[str, str] | None = None
    ) -> Iterator["Server"]:
        """A database server, in a folder of its own or in the given one."""
        with ExitStack() as graves:
            if self._is_sqlite:
                place = tempfile.TemporaryDirectory(prefix="onceward-", dir=folder)
                yield Server(None, Path(graves.enter_context(place)), is_weak=self._is_weak)
            else:
                weak = {"fsync": "off"} if self._is_weak else {}
                server = Cluster(folder, settings={**(settings or {}), **weak})
                cluster = graves.enter_context(server)
                yield Server(cluster, cluster.folder)


class Server:
    """Where databases are made: PostgreSQL, or a folder for SQLite's files."""

    def __init__(self, cluster: Cluster | None, folder: Path, *, is_weak: bool = False) -> None:
        self.cluster = cluster
        self.on_disk = folder.name if cluster else f"{folder.name}/{FILE}"
        """Where the data is, as seen from the folder that holds all."""
        self._is_weak = is_weak
        self._folder = folder

    def start(self) -> None:
        """Start it, unless it runs: an operator would."""
        if self.cluster is not None:
            self.cluster.start()

    def database(self) -> str:
        """The address of a new database."""
        if self.cluster is None:
            weak = "?synchronous=off" if self._is_weak else ""
            return f"sqlite:///{self._folder / FILE}{weak}"
        return self.cluster.create_database()
