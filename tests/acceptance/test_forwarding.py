"""The example app that forwards, and the example app that receives without Onceward."""

import runpy
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

import onceward
from support.processes import FORWARD_RECEIVER, FORWARDING, Serve


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Run the receiver of the example, and return its URL and its database."""
    handler = runpy.run_path(str(FORWARD_RECEIVER))["Receiver"]
    handler.database = str(tmp_path / "receiver.db")
    handler.log_message = lambda *_: None
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", Path(handler.database)
    server.shutdown()
    server.server_close()


def orders(database: Path) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT type, payload FROM orders").fetchall()


def test_a_process_that_dies_after_the_request_repeats_it_under_its_id(
    database_url: str, receiver: tuple[str, Path]
) -> None:
    url, database = receiver
    environment = {"BILLING_URL": url}
    with Serve(
        FORWARDING,
        database_url,
        failpoints="effect.called:kill:1",
        forked=True,
        environment=environment,
    ) as service:
        service.accept("evt_1", "order.placed", {"order": "o_1", "total": 12.5})
        service.wait()
    assert orders(database) == [("order.placed", '{"order": "o_1", "total": 12.5}')]
    # The call may be under way until its deadline, which is over.
    service.raw_db.rows(f"UPDATE onceward.effects SET deadline_at = {service.raw_db.past}")  # noqa: S608
    with Serve(FORWARDING, database_url, environment=environment, forked=True) as service:
        service.wait_until_idle()
        assert service.job("evt_1")["status"] == "done"
        (effect,) = service.items("effects")
        (handler,) = service.items("handlers")
    assert (effect["function"], effect["status"], effect["call_no"]) == ("billing", "succeeded", 2)
    assert (handler["name"], handler["forwards_to"]) == ("billing", url)
    assert len(orders(database)) == 1


def test_the_receiver_accepts_only_what_the_secret_signed_lately() -> None:
    names = runpy.run_path(str(FORWARD_RECEIVER))
    verify, secret, now = names["verify"], names["SECRET"], time.time()

    def is_accepted(body: bytes, *, at: float = now) -> bool:
        signed = onceward.sign(
            "standard-webhooks", secret=secret, headers={"webhook-id": "fwd_1"}, body=b"{}", now=at
        )
        time_and_signature = (
            signed.headers["webhook-timestamp"],
            f"v1,AAAA {signed.headers['webhook-signature']}",
        )
        return bool(verify("fwd_1", *time_and_signature, body))

    assert is_accepted(b"{}")
    assert not is_accepted(b"{ }")
    assert not is_accepted(b"{}", at=now - 400)
    assert not verify("fwd_1", "", "", b"{}")
