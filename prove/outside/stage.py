"""The stage: processes die or freeze around each step of an outside call; nothing is done twice."""

import itertools
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx

from prove.fleet import LEASE_LOST, SETTINGS
from prove.outside.app import BARE, CALLS, VARIABLE
from prove.outside.sink import FORWARDED, Sink
from prove.workbench import Workbench
from support.database import RawDatabase
from support.ledger_checker import Findings, Violation
from support.processes import ROOT, Serve, StartupFailed, Work, eventually, failpoint_in

STAGE = "effects"
APP = ROOT / "prove" / "outside" / "app.py"
EFFECT_POINTS = ("effect.intended", "effect.called", "effect.stored")
"""The failpoints around an outside call."""

EVENTS_PER_KEY = 2
KEYS_PER_PROCESS = 2
SETTLED_SECONDS = 30.0
LATE_SECONDS = 0.7
ACTION = {"actor": "ann", "reason": "looked it up at the sink"}

WAITED_FOR = """
    SELECT DISTINCT e.id, e.idempotency_key, e.function, e.call_no
    FROM onceward.effects e JOIN onceward.jobs j ON j.effect = e.id
    WHERE j.status = 'failed' AND j.failure_type = 'unknown_outcome'
"""
UNDONE = "SELECT id, status, failure_type, last_error FROM onceward.jobs WHERE status <> 'done'"
EFFECTS = "SELECT idempotency_key, function, call_no, status FROM onceward.effects"
RUNS = "SELECT event, path, receipt FROM receipts"


def call_outside(bench: Workbench) -> None:
    """Kill and freeze processes around outside calls, play the operator, and check the sink."""
    with bench.stage(STAGE), bench.server() as server, Sink(bench.seed) as sink:
        trial = OutsideTrial(bench, server.create(), sink)
        trial.kill_at_failpoints()
        trial.kill_at_random(bench.plan.effect_kills)
        trial.settle()
        if not bench.is_sqlite:  # one process serves a file
            trial.freeze()
        trial.check()


class OutsideTrial:
    """One database, one sink, and the events that were accepted."""

    def __init__(self, bench: Workbench, url: str, sink: Sink) -> None:
        self._bench = bench
        self._url = url
        self._sink = sink
        self._ledger = RawDatabase(url)
        self._numbers = itertools.count()
        self._accepted: dict[str, str] = {}
        """The path at the sink for each event that was accepted and calls it."""
        self._forwarded: set[str] = set()
        """The events that were accepted and are forwarded."""
        self._tally: Counter[str] = bench.result.tally

    def _serve(self, failpoints: str = "", **settings: float) -> Serve:
        options = self._options(**settings)
        return Serve(
            APP, self._url, *self._bench.options, failpoints=failpoints, forked=True, **options
        )

    def _options(self, **settings: float) -> dict[str, Any]:
        return {"environment": {VARIABLE: self._sink.address}, **SETTINGS, **settings}

    # Faults.

    def kill_at_failpoints(self) -> None:
        """Kill a process at each failpoint, when it is reached for the 1st and the 3rd time."""
        for point, count in itertools.product(EFFECT_POINTS, (1, 3)):
            try:
                service = self._serve(f"{point}:kill:{count}")
            except StartupFailed as failure:  # it took over jobs, and died before its first line
                if failpoint_in(str(failure)) != point:
                    raise
                self._bench.result.failpoints[point] += 1
                continue
            with service:
                self._send(service)
                eventually(
                    lambda: not service.running or service.is_idle(),  # noqa: B023 - called at once
                    f"the process dies at {point}",
                    SETTLED_SECONDS,
                )
                self._bench.result.failpoints[point] += not service.running

    def kill_at_random(self, kills: int) -> None:
        """Kill processes at random times while they call."""
        for number in range(kills):
            with self._serve() as service:
                self._send(service)
                eventually(self._calls_reach(self._bench.rng.randint(1, 4)), "calls reach the sink")
                service.kill()
            self._tally["processes killed during outside calls"] += 1
            self._bench.progress(STAGE, kills)(number + 1)

    def _calls_reach(self, count: int) -> Any:
        target = len(self._sink.calls) + count
        return lambda: len(self._sink.calls) >= target

    def freeze(self) -> None:
        """Freeze a worker after an intent; wake it when others have settled its effect."""
        frozen = Work(
            APP, self._url, failpoints="effect.intended:stop:1", forked=True, **self._options()
        )
        with frozen:
            with self._serve(workers=0) as receiver:
                self._send(receiver, BARE)
            frozen.wait_until_suspended(SETTLED_SECONDS)
            self.settle()
            frozen.resume()
            eventually(
                lambda: LEASE_LOST.search(frozen.log), "the worker is awake", SETTLED_SECONDS
            )
            time.sleep(LATE_SECONDS)  # a call that must not be made cannot be awaited
            self.settle()
        self._tally["workers frozen after an intent"] += 1

    def _send(self, service: Serve, *kinds: str) -> None:
        """Send events of some policies, or of every one. Two events share each key.

        Forwarded events have no key: each is sent under an id of its own.
        """
        for kind, _ in itertools.product(kinds or (*CALLS, FORWARDED), range(KEYS_PER_PROCESS)):
            key = f"{next(self._numbers)}"
            for event in range(EVENTS_PER_KEY):
                event_id = f"{kind}-{key}-{event}"
                event_type = f"{kind}.event" if kind == FORWARDED else f"outside.{kind}"
                with suppress(httpx.TransportError):  # the process dies meanwhile
                    response = service.post(event_id, event_type, {"key": key})
                    if response.is_success and kind == FORWARDED:
                        self._forwarded.add(event_id)
                    elif response.is_success:
                        self._accepted[event_id] = f"/{kind}/{key}"

    # The operator.

    def settle(self) -> None:
        """Let a last process finish, and resolve what only a person can find out."""
        with self._serve() as service:
            eventually(lambda: self._is_settled(service), "every job is done", SETTLED_SECONDS)

    def _is_settled(self, service: Serve) -> bool:
        """Resolve the effects that jobs wait for. Return whether every job is done."""
        for effect in self._ledger.rows(WAITED_FOR):
            self._resolve(service, *effect)
        return not self._ledger.rows(UNDONE)

    def _resolve(self, service: Serve, effect: int, key: str, function: str, call_no: int) -> None:
        """Answer as an operator who looks at the sink. An answer that is too early gets 409."""
        receipt = self._sink.find(_path(key, function))
        answer = (
            {"outcome": "happened", "result": receipt}
            if receipt
            else {"outcome": "did_not_happen", "call_no": call_no}
        )
        response = service.http.post(f"/admin/effects/{effect}/resolve", json={**ACTION, **answer})
        assert response.status_code in (200, 409), response.text
        if response.is_success:
            self._tally[f"effects resolved: {answer['outcome']}"] += 1

    # The check.

    def check(self) -> None:
        """Compare the ledger, the committed runs and the log of the sink."""
        findings = Findings()
        for row in self._ledger.rows(UNDONE):
            findings.add(Violation.UNFINISHED, f"job {row}")
        calls = Counter(call.path for call in self._sink.calls)
        for key, function, call_no, status in self._ledger.rows(EFFECTS):
            path = _path(key, function)
            if status != "succeeded":
                findings.add(Violation.WRONG_EFFECT, f"{key} is {status}")
            if calls[path] > call_no:
                detail = f"{path}: {calls[path]} calls, {call_no} intents"
                findings.add(Violation.NO_INTENT, detail)
        self._check_sink(findings)
        self._check_forwards(findings)
        self._check_runs(findings)
        self._bench.add(STAGE, findings)
        self._tally["outside calls"] += len(self._sink.calls)
        self._tally["outside calls repeated"] += sum(count - 1 for count in calls.values())
        self._tally["events forwarded"] += len(self._forwarded)
        self._tally["outside calls refused"] += self._sink.refused
        self._tally["answers of outside calls lost"] += self._sink.lost

    def _check_sink(self, findings: Findings) -> None:
        for path in set(self._accepted.values()):
            applied = len(self._sink.receipts.get(path, ()))
            if applied > 1:
                findings.add(Violation.CALLED_TWICE, f"{path}: applied {applied} times")
            elif not applied:
                findings.add(Violation.NOT_CALLED, path)

    def _check_forwards(self, findings: Findings) -> None:
        """Check that each event was applied under one id, which is signed, and none was lost."""
        for message_id in self._sink.forged:
            findings.add(Violation.FORGED, message_id)
        for event in self._forwarded:
            ids = self._sink.message_ids.get(event, set())
            applied = sum(len(self._sink.receipts[f"/{FORWARDED}/{each}"]) for each in ids)
            if applied > 1 or len(ids) > 1:
                detail = f"{event}: applied {applied} times under {len(ids)} ids"
                findings.add(Violation.CALLED_TWICE, detail)
            elif not applied:
                findings.add(Violation.NOT_CALLED, f"{event} was not forwarded")

    def _check_runs(self, findings: Findings) -> None:
        runs = Counter[str]()
        for event, path, receipt in self._ledger.rows(RUNS):
            runs[event] += 1
            if receipt != self._sink.find(path):
                findings.add(
                    Violation.WRONG_EFFECT, f"{event}: {receipt} is not the sink's receipt"
                )
        for event in self._accepted:
            if runs[event] != 1:
                findings.add(Violation.APPLIED_TWICE, f"{event}: {runs[event]} runs were committed")


def _path(key: str, function: str) -> str:
    """Return the path at the sink of the effect with a key."""
    return f"/{FORWARDED}/{key}" if function == FORWARDED else f"/{key.replace(':', '/')}"
