"""A worker that was frozen settles nothing under a lease that another worker has got meanwhile.

The job is still queued, so only the fence of the settlement is in the way. Neither the status of
the job prevents it, nor a renewal: the next one is due after a third of the lease.
"""

import sqlite3
from itertools import count

from prove.fleet import APP, LEASE_LOST, SETTINGS
from prove.workbench import Workbench
from support.database import RawDatabase
from support.ledger_checker import Violation
from support.processes import Serve, eventually

STAGE = "late settlements"
TYPES = ("payment.with_effect", "payment.made", "payment.batched")
"""A handler with a transaction of its own, one that shares it, and one of many events."""

LEASE_SECONDS = 120.0
LIMIT_SECONDS = 20.0


def settle_late(bench: Workbench) -> None:
    """Freeze a worker in each kind of handler, and give its lease to another one."""
    with bench.stage(STAGE), bench.server() as server:
        url = server.create()
        for number, event_type in enumerate(TYPES):
            turns = (f"{event_type}-{turn}" for turn in count())
            next(event_id for event_id in turns if _settle_late(bench, url, event_type, event_id))
            bench.result.tally["workers frozen until their lease was another's"] += 1
            bench.progress(STAGE, len(TYPES))(number + 1)


def _settle_late(bench: Workbench, url: str, event_type: str, event_id: str) -> bool:
    """Return False if the worker was frozen in the middle of another write to the SQLite file."""
    ledger = RawDatabase(url)
    settings = SETTINGS | {"lease_seconds": LEASE_SECONDS}
    options = {"failpoints": "handle.started:stop:1", "forked": True, **settings}
    with Serve(APP, url, *bench.options, **options) as service:
        service.accept(event_id, event_type, {"account": "a", "amount": 1})
        service.wait_until_suspended(LIMIT_SECONDS)
        try:
            ledger.rows("UPDATE onceward.leases SET token = 'of another worker, not ' || token")
        except sqlite3.OperationalError:  # the file is locked
            service.resume()
            service.wait_until_idle(LIMIT_SECONDS)
            return False
        service.resume()
        runs = f"SELECT count(*) FROM probes WHERE event = '{event_id}'"  # noqa: S608 - a constant
        eventually(
            lambda: LEASE_LOST.search(service.log) or ledger.value(runs),
            "the worker has tried to settle its job",
            LIMIT_SECONDS,
        )
        if ledger.value(runs):
            bench.add_finding(STAGE, Violation.SETTLED_LATE, f"a job of {event_type}")
        ledger.expire_leases()
        service.wait_until_idle(LIMIT_SECONDS)
        if ledger.value(runs) != 1:
            detail = f"{ledger.value(runs)} runs of {event_type} were committed"
            bench.add_finding(STAGE, Violation.APPLIED_TWICE, detail)
    return True
