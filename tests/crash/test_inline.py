"""Inline requests of processes that die, race, or lose the answer to a commit apply once."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.database import RawDatabase
from support.processes import INLINE_CREDITS, Serve
from support.proxy import Mode, Proxy
from tests.inline_sources import hookmesh_webhook

WEBHOOK = hookmesh_webhook(customer="ann", credits=5)
PROCESSED = (200, {"status": "processed", "event_id": "evt_1"})
ALREADY = (200, {"status": "already_processed", "event_id": "evt_1"})


def send(service: Serve) -> tuple[int, Any]:
    """Send the webhook, and return the status and the body of the response."""
    response = service.http.post(
        "/webhooks/hookmesh", content=WEBHOOK.body, headers=WEBHOOK.headers
    )
    return response.status_code, response.json()


def send_at_once(services: Sequence[Serve], times: int) -> Counter[str]:
    """Send the webhook concurrently to several processes, and count the responses."""
    with ThreadPoolExecutor(times) as pool:
        targets = [services[number % len(services)] for number in range(times)]
        return Counter(map(str, pool.map(send, targets)))


def credit(url: str) -> list[int]:
    """Return the credits of the customer."""
    return [number for (number,) in RawDatabase(url).rows("SELECT credits FROM accounts")]


@pytest.mark.parametrize("point", ["handle.returned", "settle.written"])
def test_a_process_that_dies_before_the_commit_leaves_nothing(
    database_url: str, point: str
) -> None:
    with Serve(INLINE_CREDITS, database_url, failpoints=f"{point}:kill:1", forked=True) as dying:
        with pytest.raises(httpx.HTTPError):
            send(dying)
        dying.wait()
    assert credit(database_url) == []
    with Serve(INLINE_CREDITS, database_url, forked=True) as service:
        assert service.items("events") == []
        assert send(service) == PROCESSED
        assert send(service) == ALREADY
    assert credit(database_url) == [5]


def test_a_process_that_dies_after_the_commit_has_processed_the_event(postgres_url: str) -> None:
    spec = "settle.committed:kill:2"  # the first commit is that of at_start
    with Serve(INLINE_CREDITS, postgres_url, failpoints=spec, forked=True) as dying:
        with pytest.raises(httpx.HTTPError):
            send(dying)
        dying.wait()
    with Serve(INLINE_CREDITS, postgres_url, forked=True) as service:
        assert send(service) == ALREADY
    assert credit(postgres_url) == [5]


def test_two_processes_that_get_one_event_concurrently_process_it_once(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    with (
        Serve(INLINE_CREDITS, postgres_url, forked=True) as first,
        Serve(INLINE_CREDITS, postgres_url, forked=True) as second,
    ):
        raw_db.rows(
            "CREATE FUNCTION slow_insert() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'"
        )
        raw_db.rows(
            "CREATE TRIGGER slow_insert BEFORE INSERT ON accounts "
            "FOR EACH ROW EXECUTE FUNCTION slow_insert()"
        )
        answers = send_at_once([first, second], 10)
        assert answers == {str(PROCESSED): 1, str(ALREADY): 9}
        (event,) = first.items("events")
        assert event["deliveries"] == 10
    assert credit(postgres_url) == [5]


def test_an_unknown_outcome_of_the_commit_is_a_503(postgres_url: str) -> None:
    with Proxy(postgres_url) as proxy, Serve(INLINE_CREDITS, proxy.url, forked=True) as service:
        assert service.http.get("/readyz").status_code == 200
        proxy.mode = Mode.LOSE_COMMITS
        status, body = send(service)
        proxy.mode = Mode.FORWARD
        assert (status, body["error"]) == (503, "unavailable")
        assert proxy.losses
        assert send(service) == ALREADY
    assert credit(postgres_url) == [5]
