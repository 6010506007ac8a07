"""PostgreSQL crashes, hangs up, is slow or loses an answer: what was acknowledged is kept."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from support.database import RawDatabase
from support.postgres import Cluster
from support.processes import APPS, Serve, eventually
from support.proxy import Mode, Proxy
from tests.checker import Journal, Sending, check_acknowledged
from tests.senders import accepted, finish, load

PROBE = APPS / "probe.py"
FAST: dict[str, Any] = {
    "lease_seconds": 1,
    "poll_seconds": 0.2,
    "retry_base_seconds": 0.2,
    "max_attempts": 20,
}


def test_what_was_acknowledged_survives_a_crash_of_the_server(
    postgres_url: str, postgres_cluster: Cluster
) -> None:
    journal = Journal()
    with Serve(PROBE, postgres_url, forked=True, **FAST) as service:
        with load(service, journal):
            eventually(accepted(journal, 100), "it runs")
            postgres_cluster.crash()
            eventually(lambda: journal.ids("unknown").total() > 8, "it is refused")
            assert service.http.get("/healthz").status_code == 200
            assert service.http.get("/readyz").status_code == 503
            postgres_cluster.start()
            check_acknowledged(RawDatabase(postgres_url), journal)
            so_far = journal.ids("ok").total()
            eventually(accepted(journal, so_far + 100), "it recovers by itself")
        finish(service, journal)


def test_a_worker_tells_of_an_outage_once_and_of_its_end(
    postgres_url: str, postgres_cluster: Cluster
) -> None:
    with Serve(PROBE, postgres_url, forked=True, **FAST) as service:
        postgres_cluster.crash()
        time.sleep(2.5)  # an outage of several looks
        postgres_cluster.start()
        eventually(lambda: "jobs can be claimed again" in service.log, "it is told")
        assert service.log.count("no jobs can be claimed") == 1


def test_a_job_is_not_blamed_for_connections_that_broke_while_nobody_worked(
    postgres_url: str, postgres_cluster: Cluster
) -> None:
    journal = Journal()
    with Serve(PROBE, postgres_url, forked=True, **FAST) as service:
        with ThreadPoolExecutor(8) as pool:  # so that the pool has many connections
            list(pool.map(lambda n: journal.send(service, Sending(f"a-{n}", 1)), range(40)))
        service.wait_until_at_rest()
        postgres_cluster.restart()
        journal.send(service, Sending("after", 1))
        finish(service, journal)
        assert service.job("after")["attempts"] == 1


def test_connections_that_are_cut_at_random_lose_and_double_nothing(postgres_url: str) -> None:
    journal = Journal()
    with Serve(PROBE, postgres_url, forked=True, **FAST) as service:
        cuts = 0
        with load(service, journal), psycopg.connect(postgres_url, autocommit=True) as knife:
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                cuts += knife.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = 'onceward' "
                    "ORDER BY random() LIMIT 1"
                ).rowcount
                time.sleep(0.02)
        finish(service, journal)
    assert cuts > 20
    assert journal.ids("ok").total() > 50


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as forwarding:
        yield forwarding


@pytest.mark.parametrize(
    ("mode", "is_duplicate"),
    [(Mode.LOSE_ANSWERS, True), (Mode.LOSE_REQUESTS, False)],
    ids=["after the commit", "before it"],
)
def test_a_connection_lost_in_recording_is_answered_503_and_the_retry_is_right(
    postgres_url: str, proxy: Proxy, mode: Mode, *, is_duplicate: bool
) -> None:
    raw_db = RawDatabase(postgres_url)
    payload = {"account": "a", "amount": 5}
    with Serve(PROBE, proxy.url, "--workers", "0", forked=True) as service:
        for number in range(8):  # until the statements are prepared: then a request is one message
            service.accept(f"before-{number}", "payment.made", payload)
        proxy.lose(mode)
        for number in range(2):  # one for each connection that records
            refused = service.post(f"evt_{number}", "payment.made", payload)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
        assert proxy.losses == 2
        stored = raw_db.rows("SELECT 1 FROM onceward.events WHERE event_id LIKE 'evt%'")
        assert len(stored) == (2 if is_duplicate else 0)
        proxy.lose(Mode.FORWARD)
        for number in range(2):
            receipt = service.accept(f"evt_{number}", "payment.made", payload)
            assert receipt["duplicate"] is is_duplicate
    assert raw_db.count("onceward.events") == 10


@pytest.mark.parametrize("mode", [Mode.LOSE_ANSWERS, Mode.LOSE_REQUESTS])
def test_a_connection_lost_in_a_handlers_commit_neither_loses_nor_doubles_its_work(
    proxy: Proxy, mode: Mode
) -> None:
    journal = Journal()
    with Serve(PROBE, proxy.url, forked=True, **FAST) as service:
        proxy.lose(mode, after=b"status = 'done'")
        journal.send(service, Sending("evt_1", 5))
        eventually(lambda: proxy.losses, "a commit is lost")
        proxy.lose(Mode.FORWARD)
        finish(service, journal)
        job = service.job("evt_1")
        assert (job["status"], job["attempts"]) == ("done", 1 if mode is Mode.LOSE_ANSWERS else 2)


def test_a_database_that_does_not_answer_is_told_to_senders_in_time(postgres_url: str) -> None:
    journal = Journal()
    raw_db = RawDatabase(postgres_url)
    with Serve(PROBE, postgres_url, "--workers", "2", forked=True, commit_timeout_seconds=0.3) as (
        service
    ):
        with raw_db.connection() as other:
            other.execute("LOCK TABLE onceward.events, onceward.jobs IN ACCESS EXCLUSIVE MODE")
            begun = time.monotonic()
            refused = service.post("evt_1", "payment.made", {})
            assert time.monotonic() - begun < 1.5
            assert (refused.status_code, refused.json()["error"]) == (503, "slow")
            assert refused.headers["retry-after"]
            _exhaust_the_pool(service)
            assert service.http.get("/healthz").status_code == 200
        journal.send(service, Sending("evt_2", 5))
        service.wait_until_at_rest()
        assert service.job("evt_2")["status"] == "done"


def _exhaust_the_pool(service: Serve) -> None:
    """Ask for lists that cannot be read, until no connection is left: then for one more."""
    connections = 4
    with ThreadPoolExecutor(connections + 1) as pool:
        asked = [
            pool.submit(service.http.get, "/admin/jobs", timeout=1.0)
            for _ in range(connections + 1)
        ]
        statuses = [None if one.exception() else one.result().status_code for one in asked]
    assert statuses.count(503) >= 1  # it could have no connection
    assert 200 not in statuses
    assert service.http.get("/readyz").status_code == 503
