"""PostgreSQL crashes, disconnects, stalls or loses a response; acknowledged events survive."""

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
from tests.payment_history import History, Payment, check_acknowledged
from tests.senders import accepted, finish, load

PROBE = APPS / "probe.py"
FAST: dict[str, Any] = {
    "lease_seconds": 1,
    "poll_seconds": 0.2,
    "retry_base_seconds": 0.2,
    "max_attempts": 20,
}


def test_acknowledged_events_survive_a_crash_of_the_server(
    postgres_url: str, postgres_cluster: Cluster
) -> None:
    history = History()
    with Serve(PROBE, postgres_url, forked=True, **FAST) as service:
        with load(service, history):
            eventually(accepted(history, 100), "100 requests are accepted")
            postgres_cluster.crash()
            eventually(lambda: history.unknown > 8, "requests are rejected")
            assert service.http.get("/healthz").status_code == 200
            assert service.http.get("/readyz").status_code == 503
            postgres_cluster.start()
            check_acknowledged(RawDatabase(postgres_url), history)
            before = history.accepted
            eventually(accepted(history, before + 100), "the service recovers")
        finish(service, history)


def test_a_worker_logs_the_start_and_the_end_of_an_outage_once(
    postgres_url: str, postgres_cluster: Cluster
) -> None:
    with Serve(PROBE, postgres_url, forked=True, **FAST) as service:
        postgres_cluster.crash()
        time.sleep(2.5)  # long enough for several polls
        postgres_cluster.start()
        eventually(
            lambda: "jobs can be claimed again" in service.log,
            "the worker logs the end of the outage",
        )
        assert service.log.count("no jobs can be claimed") == 1


def test_connections_that_broke_while_idle_cost_no_attempt(
    postgres_url: str, postgres_cluster: Cluster
) -> None:
    history = History()
    with Serve(PROBE, postgres_url, forked=True, **FAST) as service:
        with ThreadPoolExecutor(8) as pool:  # opens many connections
            list(pool.map(lambda n: history.send(service, Payment(f"a-{n}", 1)), range(40)))
        service.wait_until_idle()
        postgres_cluster.restart()
        history.send(service, Payment("after", 1))
        finish(service, history)
        assert service.job("after")["attempts"] == 1


def test_cutting_connections_at_random_loses_and_duplicates_nothing(postgres_url: str) -> None:
    history = History()
    with Serve(PROBE, postgres_url, forked=True, **FAST) as service:
        cuts = 0
        with load(service, history), psycopg.connect(postgres_url, autocommit=True) as admin:
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                cuts += admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = 'onceward' "
                    "ORDER BY random() LIMIT 1"
                ).rowcount
                time.sleep(0.02)
        finish(service, history)
    assert cuts > 20
    assert history.accepted > 50


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as forwarding:
        yield forwarding


@pytest.mark.parametrize(
    ("mode", "is_duplicate"),
    [(Mode.LOSE_RESPONSES, True), (Mode.LOSE_REQUESTS, False)],
    ids=["after the commit", "before the commit"],
)
def test_a_connection_lost_while_recording_gets_a_503_and_the_retry_is_correct(
    postgres_url: str, proxy: Proxy, mode: Mode, *, is_duplicate: bool
) -> None:
    raw_db = RawDatabase(postgres_url)
    payload = {"account": "a", "amount": 5}
    with Serve(PROBE, proxy.url, "--workers", "0", forked=True) as service:
        for number in range(8):  # prepared statements make a request a single message
            service.accept(f"before-{number}", "payment.made", payload)
        proxy.lose(mode)
        response = service.post("evt", "payment.made", payload)
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert proxy.losses >= 1  # the notification of the last event may be lost too
        stored = raw_db.rows("SELECT 1 FROM onceward.events WHERE event_id = 'evt'")
        assert len(stored) == (1 if is_duplicate else 0)
        proxy.lose(Mode.FORWARD)
        assert service.accept("evt", "payment.made", payload)["duplicate"] is is_duplicate
    assert raw_db.count("onceward.events") == 9


@pytest.mark.parametrize("mode", [Mode.LOSE_RESPONSES, Mode.LOSE_REQUESTS])
def test_a_connection_lost_in_a_handlers_commit_neither_loses_nor_repeats_its_work(
    proxy: Proxy, mode: Mode
) -> None:
    history = History()
    with Serve(PROBE, proxy.url, forked=True, **FAST) as service:
        proxy.lose(mode, after=b"status = 'done'")
        history.send(service, Payment("evt_1", 5))
        eventually(lambda: proxy.losses, "a message is dropped")
        proxy.lose(Mode.FORWARD)
        finish(service, history)
        job = service.job("evt_1")
        assert (job["status"], job["attempts"]) == ("done", 1)


def test_senders_get_a_503_in_time_when_the_database_does_not_respond(postgres_url: str) -> None:
    history = History()
    raw_db = RawDatabase(postgres_url)
    with Serve(PROBE, postgres_url, "--workers", "2", forked=True, commit_timeout_seconds=0.3) as (
        service
    ):
        with raw_db.connection() as blocker:
            blocker.execute("LOCK TABLE onceward.events, onceward.jobs IN ACCESS EXCLUSIVE MODE")
            started = time.monotonic()
            response = service.post("evt_1", "payment.made", {})
            assert time.monotonic() - started < 1.5
            assert (response.status_code, response.json()["error"]) == (503, "slow")
            assert response.headers["retry-after"]
            _exhaust_the_pool(service)
            assert service.http.get("/healthz").status_code == 200
        history.send(service, Payment("evt_2", 5))
        service.wait_until_idle()
        assert service.job("evt_2")["status"] == "done"


def _exhaust_the_pool(service: Serve) -> None:
    """Occupy every connection of the pool with blocked queries, and send one request more."""
    connections = 4
    with ThreadPoolExecutor(connections + 1) as pool:
        requests = [
            pool.submit(service.http.get, "/admin/jobs", timeout=1.0)
            for _ in range(connections + 1)
        ]
        responses = [request.result() for request in requests if not request.exception()]
    assert responses, "one request got no connection"
    assert {response.status_code for response in responses} == {503}
    assert all(response.headers["retry-after"] for response in responses)
    assert service.http.get("/readyz").status_code == 503
