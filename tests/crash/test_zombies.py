"""A worker that stands still past the end of its lease commits nothing when it wakes."""

import re
import time
from typing import Any

import pytest

from onceward.model.jobs import HandlerEntry, Route
from support.database import RawDatabase
from support.processes import APPS, Serve, Work, eventually
from support.proxy import Mode, Proxy
from tests.checker import Journal, Sending, check_at_rest
from tests.factories import claim, lease, opened, working

PROBE = APPS / "probe.py"
CREDIT = HandlerEntry("credit", 3, (Route("payment.made"),))
LOST = re.compile(r"lease was lost|leases were lost")
FAST: dict[str, Any] = {"lease_seconds": 0.5, "poll_seconds": 0.1}

# From the claim to the last moment before its commit.
STOPS = [
    "claim.leased",
    "handle.started",
    "effect.written",
    "handle.statement",
    "handle.returned",
    "settle.written",
]


@pytest.mark.parametrize("point", STOPS)
def test_another_worker_takes_over_and_the_zombie_commits_nothing(
    postgres_url: str, point: str
) -> None:
    journal, raw_db = Journal(), RawDatabase(postgres_url)
    with Serve(PROBE, postgres_url, "--workers", "0", forked=True) as service:
        journal.send(service, Sending("evt_1", 5))
        # The tables are made with two statements, before the first of the handler.
        nth = 3 if point == "handle.statement" else 1
        trap = f"{point}:stop:{nth}"
        with Work(PROBE, postgres_url, failpoints=trap, forked=True, **FAST) as zombie:
            zombie.wait_until_frozen()
            with Work(PROBE, postgres_url, forked=True, **FAST):
                service.wait_until_at_rest()
                check_at_rest(raw_db, journal)
            zombie.thaw()
            eventually(lambda: LOST.search(zombie.log), "it sees that its lease was lost")
            journal.send(service, Sending("evt_2", 7))  # nobody else is there to handle it
            service.wait_until_at_rest()
            check_at_rest(raw_db, journal)
            zombie.terminate()
            assert zombie.wait() == 0
        assert service.job("evt_1")["attempts"] == 1


def test_a_worker_that_is_cut_off_in_a_claim_keeps_nobody_from_working(postgres_url: str) -> None:
    """Claims are made one at a time, over all machines: none may hold the lock on its own."""
    journal, raw_db = Journal(), RawDatabase(postgres_url)
    with (
        Serve(PROBE, postgres_url, "--workers", "0", forked=True) as service,
        Proxy(postgres_url) as proxy,
        Work(PROBE, proxy.url, forked=True, **FAST),
    ):
        proxy.lose(Mode.HOLD_REQUESTS, after=b"pg_advisory_xact_lock(7136231, 1)")
        eventually(lambda: proxy.losses, "it is cut off")
        with Work(PROBE, postgres_url, forked=True, **FAST):
            journal.send(service, Sending("evt_1", 5))
            service.wait_until_at_rest()
        check_at_rest(raw_db, journal)


async def test_a_zombie_on_sqlite_commits_nothing_over_what_another_did(sqlite_url: str) -> None:
    """No second process may serve the file, so the test itself takes the job over."""
    journal, raw_db = Journal(), RawDatabase(sqlite_url)
    with Serve(PROBE, sqlite_url, failpoints="handle.started:stop:1", forked=True) as service:
        journal.send(service, Sending("evt_1", 5))
        service.wait_until_frozen()
        raw_db.expire_leases()
        await _take_over(sqlite_url)
        check_at_rest(raw_db, journal)
        service.thaw()
        eventually(lambda: LOST.search(service.log), "it sees that its lease was lost")
        journal.send(service, Sending("evt_2", 7))
        service.wait_until_at_rest()
        check_at_rest(raw_db, journal)


@pytest.mark.parametrize("point", ["handle.statement:stop:3", "settle.written:stop:1"])
def test_a_process_that_stood_still_in_its_transaction_ends_it_once(
    sqlite_url: str, point: str
) -> None:
    """It holds the file's only write lock: nobody can take over meanwhile."""
    journal, raw_db = Journal(), RawDatabase(sqlite_url)
    with Serve(PROBE, sqlite_url, failpoints=point, forked=True, **FAST) as service:
        journal.send(service, Sending("evt_1", 5))
        service.wait_until_frozen()
        leases = "SELECT until FROM onceward.leases"
        eventually(lambda: raw_db.value(leases) < time.time() * 1e6, "its lease is over")
        service.thaw()
        journal.send(service, Sending("evt_2", 7))
        service.wait_until_at_rest()
        check_at_rest(raw_db, journal)


async def _take_over(url: str) -> None:
    """What another worker would do: rescue the job, run its handler, and settle it."""
    async with opened(url, serving=False, handlers=[CREDIT]) as store:
        rescued = await claim(store)
        assert rescued.lease is None
        assert rescued.solo_waiting
        held = await lease(store, solo=True)
        (job,) = held.jobs
        async with working(store) as work:
            assert await work.unit.mark_effect(job.id, "credit:evt_1", "a")
            await work.tx.execute("INSERT INTO probes (event, is_first) VALUES ('evt_1', 1)")
            await work.tx.execute("INSERT INTO accounts (name, balance) VALUES ('a', 5)")
            assert await work.unit.settle(held.token, job.id)
