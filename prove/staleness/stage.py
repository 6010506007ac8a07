"""The stage: shuffled versions, retries and kills; the newest version of each object wins."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx

from prove.fleet import SETTINGS
from prove.workbench import Workbench
from support.database import RawDatabase
from support.ledger_checker import Findings, Violation
from support.processes import ROOT, Serve, eventually

STAGE = "versions"
APP = ROOT / "prove" / "staleness" / "app.py"
OBJECTS = 12
VERSIONS = 5
"""The versions of an object that a process gets, some of them twice under other ids."""

SENDERS = 4
SETTLED_SECONDS = 30.0

Change = tuple[str, int, str]
"""An object, a version and the id of the event."""

JOBS = """
    SELECT e.event_id, j.status, j.failure_type
    FROM onceward.jobs j JOIN onceward.events e ON e.id = j.event
"""


def change_objects(bench: Workbench) -> None:
    """Send versions in random order to processes that are killed, and check every object."""
    with bench.stage(STAGE), bench.server() as server:
        trial = VersionTrial(bench, server.create())
        for number in range(bench.plan.version_kills):
            trial.kill_under_load()
            bench.progress(STAGE, bench.plan.version_kills)(number + 1)
        trial.finish()
        trial.check()


class VersionTrial:
    """One database, and the changes that were accepted."""

    def __init__(self, bench: Workbench, url: str) -> None:
        self._bench = bench
        self._url = url
        self._ledger = RawDatabase(url)
        self._accepted: dict[str, Change] = {}
        self._sent = 0

    def _serve(self) -> Serve:
        return Serve(APP, self._url, *self._bench.options, forked=True, **SETTINGS)

    def kill_under_load(self) -> None:
        """Send changes on several connections, and kill the process meanwhile."""
        with self._serve() as service:
            changes = self._shuffled_changes()
            with ThreadPoolExecutor(SENDERS) as senders:
                sending = senders.map(lambda change: self._send(service, change), changes)
                target = len(self._accepted) + len(changes) // 2
                eventually(lambda: len(self._accepted) >= target, "changes are accepted")
                service.kill()
                list(sending)
        self._bench.result.tally["processes killed during versions"] += 1

    def _shuffled_changes(self) -> list[Change]:
        """Return changes in random order. Some have the version of another one."""
        first, self._sent = self._sent, self._sent + OBJECTS * VERSIONS
        changes = [_change(number) for number in range(first, self._sent)]
        self._bench.rng.shuffle(changes)
        return changes

    def _send(self, service: Serve, change: Change) -> None:
        name, version, event = change
        with suppress(httpx.TransportError):  # the process dies meanwhile
            payload = {"object": name, "version": version}
            if service.post(event, "object.changed", payload).is_success:
                self._accepted[event] = change

    def finish(self) -> None:
        """Send the last changes to a process that lives, and wait until every job has ended."""
        with self._serve() as service:
            for change in self._shuffled_changes():
                self._send(service, change)
            service.wait_until_idle(SETTLED_SECONDS)

    def check(self) -> None:
        """Compare each object with the newest change that was accepted for it."""
        findings = Findings()
        statuses = {event: (status, kind) for event, status, kind in self._ledger.rows(JOBS)}
        ended = {("done", None), ("ignored", "stale")}
        for event in self._accepted:
            if statuses.get(event) not in ended:
                findings.add(Violation.WRONG_FINAL_STATE, f"{event}: {statuses.get(event)}")
        self._check_objects(findings, set(statuses))
        self._check_log(findings, statuses)
        self._bench.add(STAGE, findings)
        stale = sum(status == "ignored" for status, _ in statuses.values())
        self._bench.result.tally["versions sent"] += len(statuses)
        self._bench.result.tally["stale versions"] += stale

    def _check_objects(self, findings: Findings, recorded: set[str]) -> None:
        """Check that the newest change of each object won. Equal versions go by the event's id."""
        newest: dict[str, tuple[int, str]] = {}
        for name, version, event in map(_change, range(self._sent)):
            if event in recorded:  # the response may be lost
                newest[name] = max(newest.get(name, (-1, "")), (version, event))
        found = {
            name: (version, event)
            for name, version, event in self._ledger.rows(
                "SELECT name, version, event FROM objects"
            )
        }
        for name, change in newest.items():
            if found.get(name) != change:
                detail = f"{name} is {found.get(name)}; the newest change is {change}"
                findings.add(Violation.STALE_APPLIED, detail)

    def _check_log(self, findings: Findings, statuses: dict[str, tuple[str, str | None]]) -> None:
        """Check that every done change was committed once, and no stale one."""
        logged = [event for (event,) in self._ledger.rows("SELECT event FROM changes")]
        for event in set(logged):
            if logged.count(event) > 1:
                findings.add(Violation.APPLIED_TWICE, event)
            if statuses[event][0] != "done":
                findings.add(Violation.APPLIED_BUT_NOT_DONE, f"{event}: {statuses[event]}")
        done = {event for event, (status, _) in statuses.items() if status == "done"}
        for event in done - set(logged):
            findings.add(Violation.NOT_APPLIED, event)


def _change(number: int) -> Change:
    """Return a change by its number. Some have the version of the one before."""
    return f"object-{number % OBJECTS}", number // OBJECTS // 2, f"change-{number:06}"
