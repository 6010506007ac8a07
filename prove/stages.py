"""The stages of the proof for one store, each on a database of its own."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from prove import process_faults, storage_faults
from prove.cancellations import cancel_operations
from prove.clock_steps import step_clocks
from prove.experiment import Experiment
from prove.failover import fail_over
from prove.failpoint_sweep import FailpointSweep
from prove.frozen_host import freeze_host
from prove.hostile_content.stage import send_hostile_content
from prove.late_settlements import settle_late
from prove.outside.stage import call_outside
from prove.poolers import run_behind_poolers
from prove.queueing.rules import keep_rules
from prove.queueing.times import measure_times
from prove.retention.stage import keep_and_forget
from prove.staleness.stage import change_objects
from prove.vanished_file import vanish
from prove.workbench import StoreResult, Workbench
from support.disks import image_disk, small_disk
from support.ledger_checker import Findings
from support.postgres import Cluster
from support.proxy import Proxy

OUTAGE_EVENTS = 400
OUTAGE_SECONDS = 2.0
POWER_CUT_EVENTS_PER_SECOND = 250
SENT_PER_RECORDED = 1.04
"""Invalid events are rejected, so a few more are sent than recorded."""

# Frequent checkpoints keep the recovery after a crash short.
SERVER = {"max_wal_size": "128MB", "checkpoint_timeout": "30s"}
SMALL_SERVER = {"max_wal_size": "32MB", "min_wal_size": "32MB"}


class StageRunner(Workbench):
    """Runs the stages of one store, one after another."""

    def run(self, only: str | None = None) -> StoreResult:
        """Run every stage that applies to the store, or one of them alone."""
        stages = SQLITE_STAGES if self.is_sqlite else POSTGRES_STAGES
        for name, run in stages.items():
            if only in (None, name):
                run(self)
        return self.result

    def storm(self) -> None:
        """Run without faults, then crash, kill and suspend, all over one ledger under load."""
        lease_seconds = process_faults.BASELINE_LEASE_SECONDS
        with (
            self.stage("storm"),
            self.server(settings=SERVER) as server,
            self.experiment("storm", server.create(), lease_seconds=lease_seconds) as experiment,
        ):
            self._storm(experiment, server.cluster)

    def _storm(self, experiment: Experiment, cluster: Cluster | None) -> None:
        plan = self.plan
        with self._phase(experiment, "baseline", plan.baseline_seconds):
            process_faults.run_baseline(experiment, plan.baseline_seconds)
        if cluster is not None and plan.crashes:
            with self._phase(experiment, "crashes", plan.crash_seconds):
                target = self.target("crashes", plan.crashes, plan.crash_seconds)
                storage_faults.crash_server(experiment, cluster, target)
        experiment.fleet.restart(lease_seconds=process_faults.LEASE_SECONDS)
        if plan.kills:
            with self._phase(experiment, "kills", plan.kill_seconds):
                target = self.target("kills", plan.kills, plan.kill_seconds)
                process_faults.kill_processes(experiment, target)
        if plan.zombies:
            with self.timed("zombies"):
                target = self.target("zombies", plan.zombies, plan.zombie_seconds)
                process_faults.make_zombies(experiment, target)
        with self.timed("drain"):
            experiment.drain()

    def lost_commits(self) -> None:
        """Lose responses of the database; SQLite has no connection to cut."""
        count = self.plan.lost_commits
        with self.stage("lost commits"), self.server() as server:
            url = server.create()
            with (
                Proxy(url) as proxy,
                self.experiment("lost", proxy.url, direct_url=url) as experiment,
            ):
                experiment.send(100 * OUTAGE_EVENTS, 100 * OUTAGE_SECONDS)
                experiment.wait_until_recovered()
                progress = self.progress("lost commits", count)
                storage_faults.lose_commits(experiment, proxy, count, progress)
                experiment.drain()

    def full_disk(self) -> None:
        """Fill the disk of the database, and free it again."""
        megabytes = 24 if self.is_sqlite else 160
        with (
            self.stage("full disk"),
            small_disk(megabytes) as disk,
            self.server(disk, SMALL_SERVER) as server,
            self.experiment("full", server.create(), commit_timeout_seconds=0.5) as experiment,
        ):
            experiment.send(100 * OUTAGE_EVENTS, 100 * OUTAGE_SECONDS)
            experiment.wait_until_recovered(OUTAGE_EVENTS // 2)
            storage_faults.fill_disk(experiment, disk, server.start)
            experiment.wait_until_recovered(OUTAGE_EVENTS // 2)
            experiment.drain()

    def power_cuts(self) -> None:
        """Cut the power repeatedly, on a disk that keeps only data that was synced."""
        plan = self.plan
        deadline = time.monotonic() + plan.cut_seconds * self.overrun
        progress = self.progress("power cuts", plan.power_cuts)
        with (
            self.stage("power cuts"),
            image_disk(512) as disk,
            self.server(disk.mount, SMALL_SERVER) as server,
            self.experiment("cut", server.create()) as experiment,
        ):
            while experiment.tally["power cuts"] < plan.power_cuts:
                if time.monotonic() > deadline:
                    break
                disk.sync()
                experiment.send(10**6, 10**6 / POWER_CUT_EVENTS_PER_SECOND)
                experiment.wait(self.rng.uniform(0.2, 0.8))
                experiment.wait_until_recovered()
                storage_faults.cut_power(experiment, disk, server.cluster, server.path_on_disk)
                progress(experiment.tally["power cuts"])
            experiment.drain()

    def failpoints(self) -> None:
        """Kill at every failpoint."""
        with self.stage("failpoints"), self.server() as server:
            sweep = FailpointSweep(server.create(), self.seed)
            sweep.run(self.progress("failpoints", 0))
            self.result.failpoints += sweep.kills
            self.result.figures["failpoints"] = sweep.figures
            counts = Counter(finding.violation for finding in sweep.findings)
            self.add("failpoints", Findings(sweep.findings, counts))

    @contextmanager
    def _phase(self, experiment: Experiment, name: str, seconds: float) -> Iterator[None]:
        """Send a share of the storm's events, and wait at the end until they were sent."""
        events = self.plan.events * seconds / self.plan.load_seconds
        experiment.send(round(events * SENT_PER_RECORDED), seconds)
        deadline = time.monotonic() + seconds * self.overrun
        with self.timed(name):
            yield
            experiment.wait_until_sent(deadline)


Stages = Mapping[str, Callable[[StageRunner], None]]

POSTGRES_STAGES: Stages = MappingProxyType(
    {
        "storm": StageRunner.storm,
        "lost commits": StageRunner.lost_commits,
        "full disk": StageRunner.full_disk,
        "power cuts": StageRunner.power_cuts,
        "failpoints": StageRunner.failpoints,
        "late settlements": settle_late,
        "frozen host": freeze_host,
        "failover": fail_over,
        "poolers": run_behind_poolers,
        "cancellations": cancel_operations,
        "clock steps": step_clocks,
        "queue": keep_rules,
        "effects": call_outside,
        "versions": change_objects,
        "hostile content": send_hostile_content,
        "retention": keep_and_forget,
        "queue times": measure_times,
    }
)
SQLITE_STAGES: Stages = MappingProxyType(
    {
        "storm": StageRunner.storm,
        "full disk": StageRunner.full_disk,
        "power cuts": StageRunner.power_cuts,
        "failpoints": StageRunner.failpoints,
        "late settlements": settle_late,
        "cancellations": cancel_operations,
        "clock steps": step_clocks,
        "vanished file": vanish,
        "queue": keep_rules,
        "effects": call_outside,
        "versions": change_objects,
        "hostile content": send_hostile_content,
        "retention": keep_and_forget,
    }
)
