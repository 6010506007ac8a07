"""The database's host vanishes with statements in flight, and comes back."""

from collections.abc import Iterator

import pytest

from support.processes import APPS, Serve, eventually
from support.proxy import Proxy

PROBE = APPS / "probe.py"
PAYLOAD = {"account": "a", "amount": 1}
END_SECONDS = 20.0
"""About 10 are needed: for a claim, for its cancellation, and for the events that wait."""


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as running:
        yield running


def test_a_service_survives_a_frozen_host_and_records_again(proxy: Proxy) -> None:
    with Serve(PROBE, proxy.url, forked=True, commit_timeout_seconds=0.3) as service:
        service.accept("evt_1", "payment.made", PAYLOAD)
        service.wait_until_idle()
        proxy.freeze()
        for number in range(5):
            response = service.post(f"evt_frozen_{number}", "payment.made", PAYLOAD)
            assert response.status_code == 503
            assert response.headers["retry-after"]
        assert service.http.get("/healthz").status_code == 200
        assert service.http.get("/readyz").status_code == 503
        proxy.cut()
        proxy.thaw()
        eventually(
            lambda: service.post("evt_2", "payment.made", PAYLOAD).status_code == 202,
            "an event is recorded",
            5.0,
        )
        eventually(lambda: service.http.get("/readyz").status_code == 200, "it is ready", 5.0)
        service.wait_until_idle()
        for event in ("evt_1", "evt_2"):
            job = service.job(event)
            assert (job["status"], job["attempts"]) == ("done", 1)


def test_sigterm_ends_a_service_whose_database_is_frozen(proxy: Proxy) -> None:
    with Serve(PROBE, proxy.url, forked=True, drain_seconds=1) as service:
        service.accept("evt_1", "payment.made", PAYLOAD)
        service.wait_until_idle()
        proxy.freeze()
        assert service.post("evt_2", "payment.made", PAYLOAD).status_code == 503
        service.terminate()
        exit_code = service.wait(END_SECONDS)
        was_ended = "did not stop in time and was ended. The database does not" in service.log
        assert exit_code == was_ended  # a statement that gives up in time leaves a clean end
