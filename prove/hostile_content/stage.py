"""The stage: hostile bodies; what filters and keys decided is compared with what handlers got."""

from concurrent.futures import ThreadPoolExecutor

from prove.fleet import SETTINGS
from prove.hostile_content.app import FILTERED, PAID, WITNESS
from prove.hostile_content.bodies import hostile_body
from prove.workbench import Workbench
from support.database import RawDatabase
from support.ledger_checker import Findings, Violation
from support.processes import ROOT, Serve

STAGE = "hostile content"
APP = ROOT / "prove" / "hostile_content" / "app.py"
SENDERS = 4
SETTLED_SECONDS = 60.0
ONE_ATTEMPT = {"max_attempts": 1}

Note = tuple[bool, str | None, str | None]
"""Whether a handler could decode a payload, and the status and the customer that it found."""
Job = tuple[str, str | None, str | None]
"""The status of a job, its failure type and its ordering key."""

JOBS = """
    SELECT e.event_id, h.name, j.status, j.failure_type, j.ordering_key
    FROM onceward.jobs j JOIN onceward.events e ON e.id = j.event
    JOIN onceward.handlers h ON h.id = j.handler
"""
NOTES = "SELECT event, handler, decoded, status, customer FROM notes"


def send_hostile_content(bench: Workbench) -> None:
    """Send bodies that could be read in different ways, and check what became of each."""
    with bench.stage(STAGE), bench.server() as server:
        url = server.create()
        bodies = {
            f"body-{number:05}": hostile_body(bench.rng)
            for number in range(bench.plan.hostile_bodies)
        }
        findings = Findings()
        with Serve(APP, url, *bench.options, forked=True, **(SETTINGS | ONE_ATTEMPT)) as service:
            with ThreadPoolExecutor(SENDERS) as senders:
                sent = senders.map(lambda item: _send(service, *item), bodies.items())
                for number, (event, status) in enumerate(sent, 1):
                    bench.progress(STAGE, len(bodies))(number)
                    if status != 202:  # its id is in a header
                        findings.add(Violation.WRONG_RESPONSE, f"{event}: {status}")
            service.wait_until_idle(SETTLED_SECONDS)
        readable = _check(RawDatabase(url), bodies, findings)
        bench.add(STAGE, findings)
        bench.result.tally["hostile bodies"] += len(bodies)
        bench.result.tally["hostile bodies that are JSON"] += readable


def _send(service: Serve, event: str, body: bytes) -> tuple[str, int]:
    headers = {"x-id": event, "x-type": "order", "content-type": "application/json"}
    response = service.http.post("/webhooks/shop", content=body, headers=headers)
    return event, response.status_code


def _check(ledger: RawDatabase, bodies: dict[str, bytes], findings: Findings) -> int:
    """Check each event by what the witness got of it, and return how many are JSON."""
    jobs: dict[tuple[str, str], Job] = {
        (event, handler): (status, failure, key)
        for event, handler, status, failure, key in ledger.rows(JOBS)
    }
    notes: dict[tuple[str, str], Note] = {
        (event, handler): (bool(decoded), status, customer)
        for event, handler, decoded, status, customer in ledger.rows(NOTES)
    }
    readable = 0
    for event, body in bodies.items():
        seen = notes.get((event, WITNESS))
        if seen is None:
            findings.add(Violation.NOT_APPLIED, f"{event}: {body[:200]!r}")
            continue
        readable += seen[0]
        for handler in FILTERED:
            job, note = jobs.get((event, handler)), notes.get((event, handler))
            if violation := _violation(handler, seen, job, note):
                detail = f"{event}, {handler}: {job}, {note}, witness {seen}: {body[:200]!r}"
                findings.add(violation, detail)
    return readable


def _violation(handler: str, seen: Note, job: Job | None, note: Note | None) -> Violation | None:
    """Return what is wrong with the job of one handler, or None.

    A job fails for good if no filter could read the body, or if the model does not fit.
    """
    decoded, status, customer = seen
    if note is not None and (not decoded or note != seen or note[1] != ascii(PAID)):
        return Violation.FILTER_PASSED_BY
    if decoded and status != ascii(PAID):
        return None if job is None else Violation.FILTER_IGNORED
    if job is None:
        return Violation.NOT_APPLIED
    if job[:2] == ("failed", "permanent"):
        return None if note is None else Violation.APPLIED_BUT_NOT_DONE
    if job[0] != "done" or note is None:
        return Violation.WRONG_FINAL_STATE
    is_ordered = handler not in ("shared", "batch")
    return (
        Violation.FILTER_PASSED_BY
        if is_ordered and customer and ascii(job[2]) != customer
        else None
    )
