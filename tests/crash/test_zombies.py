"""A worker that is suspended past the end of its lease commits nothing when it resumes."""

import re
import time
from typing import Any

import pytest

from onceward.model.jobs import HandlerEntry, Route
from support.database import RawDatabase
from support.processes import APPS, Serve, Work, eventually
from support.proxy import Mode, Proxy
from tests.factories import claim, lease, opened, working
from tests.payment_history import History, Payment, check_ledger

PROBE = APPS / "probe.py"
CREDIT = HandlerEntry("credit", 3, (Route("payment.made"),))
LOST = re.compile(r"lease was lost|leases were lost")
FAST: dict[str, Any] = {"lease_seconds": 0.5, "poll_seconds": 0.1}

# From the claim to the last point before the commit.
POINTS = [
    "claim.leased",
    "handle.started",
    "effect.written",
    "handle.statement",
    "handle.returned",
    "settle.written",
]


@pytest.mark.parametrize("point", POINTS)
def test_another_worker_finishes_the_job_and_the_zombie_commits_nothing(
    postgres_url: str, point: str
) -> None:
    history, raw_db = History(), RawDatabase(postgres_url)
    with Serve(PROBE, postgres_url, "--workers", "0", forked=True) as service:
        history.send(service, Payment("evt_1", 5))
        # Two statements create the tables before the first one of the handler.
        nth = 3 if point == "handle.statement" else 1
        failpoint = f"{point}:stop:{nth}"
        with Work(PROBE, postgres_url, failpoints=failpoint, forked=True, **FAST) as zombie:
            zombie.wait_until_suspended()
            with Work(PROBE, postgres_url, forked=True, **FAST):
                service.wait_until_idle()
                check_ledger(raw_db, history)
            zombie.resume()
            eventually(lambda: LOST.search(zombie.log), "the lost lease is logged")
            history.send(service, Payment("evt_2", 7))  # for the zombie, the only worker left
            service.wait_until_idle()
            check_ledger(raw_db, history)
            zombie.terminate()
            assert zombie.wait() == 0
        assert service.job("evt_1")["attempts"] == 1


def test_a_worker_that_stalls_in_a_claim_does_not_block_the_others(postgres_url: str) -> None:
    """One advisory lock serializes all claims: a stalled client must not keep it."""
    history, raw_db = History(), RawDatabase(postgres_url)
    with (
        Serve(PROBE, postgres_url, "--workers", "0", forked=True) as service,
        Proxy(postgres_url) as proxy,
        Work(PROBE, proxy.url, forked=True, **FAST),
    ):
        proxy.lose(Mode.HOLD_REQUESTS, after=b"pg_advisory_xact_lock(7136231, 1)")
        eventually(lambda: proxy.losses, "the worker stalls")
        with Work(PROBE, postgres_url, forked=True, **FAST):
            history.send(service, Payment("evt_1", 5))
            service.wait_until_idle()
        check_ledger(raw_db, history)


async def test_a_zombie_on_sqlite_does_not_commit_over_another_workers_result(
    sqlite_url: str,
) -> None:
    """Only one process may serve the file, so the test itself plays the other worker."""
    history, raw_db = History(), RawDatabase(sqlite_url)
    with Serve(PROBE, sqlite_url, failpoints="handle.started:stop:1", forked=True) as service:
        history.send(service, Payment("evt_1", 5))
        service.wait_until_suspended()
        raw_db.expire_leases()
        await _finish_job(sqlite_url)
        check_ledger(raw_db, history)
        service.resume()
        eventually(lambda: LOST.search(service.log), "the lost lease is logged")
        history.send(service, Payment("evt_2", 7))
        service.wait_until_idle()
        check_ledger(raw_db, history)


@pytest.mark.parametrize("point", ["handle.statement:stop:3", "settle.written:stop:1"])
def test_a_process_suspended_inside_its_transaction_commits_it_once(
    sqlite_url: str, point: str
) -> None:
    """The transaction holds the only write lock, so no other worker can take the job."""
    history, raw_db = History(), RawDatabase(sqlite_url)
    with Serve(PROBE, sqlite_url, failpoints=point, forked=True, **FAST) as service:
        history.send(service, Payment("evt_1", 5))
        service.wait_until_suspended()
        leases = "SELECT until FROM onceward.leases"
        eventually(lambda: raw_db.value(leases) < time.time() * 1e6, "the lease has expired")
        service.resume()
        history.send(service, Payment("evt_2", 7))
        service.wait_until_idle()
        check_ledger(raw_db, history)


async def _finish_job(url: str) -> None:
    """Reclaim the job, run its handler and settle it, as another worker would."""
    async with opened(url, serving=False, handlers=[CREDIT]) as store:
        reclaimed = await claim(store)
        assert reclaimed.lease is None
        assert reclaimed.solo_waiting
        solo_lease = await lease(store, solo=True)
        (job,) = solo_lease.jobs
        async with working(store) as work:
            assert await work.unit.mark_effect(job.id, "credit:evt_1", "a")
            await work.tx.execute("INSERT INTO probes (event, is_first) VALUES ('evt_1', 1)")
            await work.tx.execute("INSERT INTO accounts (name, balance) VALUES ('a', 5)")
            assert await work.unit.settle(solo_lease.token, job.id)
