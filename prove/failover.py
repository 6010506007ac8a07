"""Failover by streaming replication: to a synchronous standby, an asynchronous one, an old backup.

The service reaches the database through a proxy, which is switched to the next server. Before a
primary crashes, the link to its standby freezes. A synchronous primary can acknowledge nothing from
then on. What an asynchronous one acknowledges is gone, and must be taken as new when it is sent
again. The backup is older than the first start of the service: it knows no source and no handler.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from prove.checker import check_copy
from prove.experiment import Experiment
from prove.probe_tables import TABLES
from prove.workbench import Workbench
from support.database import RawDatabase
from support.ledger_checker import Violation
from support.postgres import Cluster
from support.processes import COMMAND, eventually
from support.proxy import Proxy

EVENTS_PER_SECOND = 200
LAG_SECONDS = 0.4
LAG_REQUESTS = 40
IN_FLIGHT_SECONDS = 0.2
RECOVERY_LIMIT_SECONDS = 10.0
GONE = "acknowledged events gone with a server"

EVENT_IDS = "SELECT event_id FROM onceward.events"
STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


def fail_over(bench: Workbench) -> None:
    """Crash the primary under load, and let the service continue on another server."""
    total = 2 + bench.plan.failovers
    progress = bench.progress("failover", total)
    with bench.stage("failover"), bench.server() as server, ExitStack() as stack:
        url = server.create()
        _prepare(url)
        backup = Cluster(existing=server.postgres.back_up())
        stack.callback(backup.close)
        proxy = stack.enter_context(Proxy(url))
        standby = stack.enter_context(_following(server.postgres))
        server.postgres.configure(synchronous_standby_names="*")
        ledger = RawDatabase(server.postgres.url("postgres"))
        eventually(lambda: ledger.value(SYNCHRONOUS), "the standby is synchronous")
        with bench.experiment("failover", proxy.url, direct_url=url) as experiment:
            experiment.send(10**6, 10**6 / EVENTS_PER_SECOND)
            chain = FailoverChain(experiment, proxy, server.postgres)
            chain.continue_on_synchronous(standby)
            progress(1)
            for number in range(bench.plan.failovers):
                chain.continue_on_asynchronous(stack.enter_context(_following(chain.primary)))
                progress(2 + number)
            chain.continue_on_backup(backup)
            progress(total)
            experiment.drain()


def _prepare(url: str) -> None:
    """Create all tables, without a source or a handler in them."""
    subprocess.run([COMMAND, "migrate", "--database", url], check=True, capture_output=True)
    for statement in TABLES:
        RawDatabase(url).rows(statement)


@dataclass(frozen=True)
class Standby:
    """A server that follows another one over a link that can freeze."""

    cluster: Cluster
    link: Proxy


@contextmanager
def _following(primary: Cluster) -> Iterator[Standby]:
    """Start a standby, and wait until it streams."""
    with (
        Proxy(primary.url("postgres")) as link,
        Cluster(existing=primary.back_up(link.url)) as cluster,
    ):
        ledger = RawDatabase(primary.url("postgres"))
        eventually(lambda: ledger.value(STREAMING), "the standby streams")
        yield Standby(cluster, link)


class FailoverChain:
    """The servers that one service used, one after another."""

    def __init__(self, experiment: Experiment, proxy: Proxy, primary: Cluster) -> None:
        self.primary = primary
        self._experiment = experiment
        self._proxy = proxy
        self._database = experiment.ledger.url.rpartition("/")[2]

    def continue_on_synchronous(self, standby: Standby) -> None:
        """Promote a standby that has confirmed every commit: nothing may be missing."""
        self._experiment.wait_until_recovered()
        standby.link.freeze()
        time.sleep(LAG_SECONDS)  # while no commit is confirmed
        requests = self._crash()
        self._promote(standby)
        ledger = RawDatabase(standby.cluster.url(self._database))
        self._experiment.add(check_copy(ledger, self._experiment.history, requests), ledger)
        self._switch(standby.cluster, "a failover to a synchronous standby")

    def continue_on_asynchronous(self, standby: Standby) -> None:
        """Promote a standby that lags behind."""
        self._experiment.wait_until_recovered()
        standby.link.freeze()
        self._experiment.wait_until_recovered(LAG_REQUESTS)
        requests = self._crash()
        self._promote(standby)
        self._go_back(standby.cluster, requests, "a failover to an asynchronous standby")

    def continue_on_backup(self, backup: Cluster) -> None:
        """Start a backup instead of the primary."""
        self._experiment.wait_until_recovered()
        requests = self._crash()
        backup.start()
        self._go_back(backup, requests, "a restore of an old backup")

    def _crash(self) -> int:
        """Crash the primary, and return how many requests were answered until then."""
        self.primary.crash()
        time.sleep(IN_FLIGHT_SECONDS)  # the last responses are still on their way
        return len(self._experiment.history)

    def _promote(self, standby: Standby) -> None:
        standby.link.cut()
        standby.cluster.promote()

    def _go_back(self, cluster: Cluster, requests: int, name: str) -> None:
        """Continue on an older ledger, and send again what it does not know."""
        experiment, history = self._experiment, self._experiment.history
        numbers = RawDatabase(cluster.url(self._database)).rows(EVENT_IDS)
        present = {history.workload.number_of(event_id) for (event_id,) in numbers}
        gone = history.acknowledged(requests) - present
        history.void(requests)
        experiment.tally[GONE] += len(gone)
        experiment.load_generator.repeat(sorted(gone))
        self._switch(cluster, name)
        for number in history.reported_as_new(requests) & present:
            detail = f"{history.workload.event_id(number)} was in the ledger before {name}"
            experiment.findings.add(Violation.REPORTED_NEW_TWICE, detail, number)

    def _switch(self, cluster: Cluster, name: str) -> None:
        experiment, url = self._experiment, cluster.url(self._database)
        self.primary, experiment.ledger = cluster, RawDatabase(url)
        conditions = experiment.service_conditions()
        self._proxy.switch(url)
        experiment.tally["failovers"] += 1
        experiment.watch_recovery(name, conditions, RECOVERY_LIMIT_SECONDS)
