"""A process that gets a signal to stop ends in time, even if its handlers do not stop."""

import signal
import time
from pathlib import Path

import httpx
import pytest

from onceward.cli._exit_deadline import EXIT_GRACE_SECONDS
from support.database import RawDatabase
from support.processes import APPS, Serve, eventually

MISCHIEF = APPS / "mischief.py"
DRAIN_SECONDS = 0.2
SLACK_SECONDS = 10.0


def start(tmp_path: Path, kind: str) -> Serve:
    """Start a service and wait until its handler runs."""
    service = Serve(MISCHIEF, f"sqlite:///{tmp_path / kind}.db", drain_seconds=DRAIN_SECONDS)
    started = tmp_path / f"{kind}.started"
    service.post("evt_1", kind, {"seconds": 60, "touch": str(started)})
    eventually(started.exists, "the handler runs")
    return service


def test_handlers_that_do_not_stop_end_with_the_process(tmp_path: Path) -> None:
    with start(tmp_path, "stubborn") as stubborn, start(tmp_path, "endless") as endless:
        told_at = time.monotonic()
        stubborn.terminate()
        endless.terminate()
        limit = DRAIN_SECONDS + EXIT_GRACE_SECONDS + SLACK_SECONDS
        assert stubborn.wait(EXIT_GRACE_SECONDS) == 0  # its jobs are released: nobody waits longer
        assert endless.wait(limit) == 1
        assert time.monotonic() - told_at < limit
        assert "a handler or a task of the app ignored its cancellation" in stubborn.log
        assert "was ended with the process, at tests/apps/mischief.py:" in stubborn.log
        assert "The event loop is blocked at tests/apps/mischief.py:" in endless.log
        state = "SELECT status, attempts, solo FROM onceward.jobs"
        assert stubborn.raw_db.rows(state) == [("queued", 0, 0)]
        leases = stubborn.raw_db.count("onceward.leases"), endless.raw_db.count("onceward.leases")
        assert leases == (0, 1)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_other_signals_drain_and_end_the_process(
    sqlite_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    started = tmp_path / "started"
    with Serve(MISCHIEF, sqlite_url) as service:
        service.accept("evt_1", "slow", {"seconds": 0.3, "touch": str(started)})
        eventually(started.exists, "the handler runs")
        service.terminate(number)
        assert service.wait() == 0
    assert RawDatabase(sqlite_url).rows("SELECT event FROM notes") == [("evt_1",)]


def test_a_second_signal_kills_the_process(sqlite_url: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with Serve(MISCHIEF, sqlite_url) as service:
        service.accept("evt_1", "slow", {"seconds": 60, "touch": str(started)})
        eventually(started.exists, "the handler runs")
        service.terminate()

        def accepts_nothing() -> bool:
            try:
                httpx.get(f"{service.address}/healthz")
            except httpx.ConnectError:
                return True
            return False

        eventually(accepts_nothing, "it drains")
        service.terminate()
        assert service.wait() == -signal.SIGTERM


def test_a_handler_that_raises_keyboard_interrupt_fails_its_job(sqlite_url: str) -> None:
    with Serve(MISCHIEF, sqlite_url) as service:
        service.accept("evt_1", "interrupting", {})
        service.wait_until_idle()
        job = service.job("evt_1")
        assert (job["status"], job["last_error"]) == (
            "failed",
            "interrupt tried to exit the process",
        )
        assert service.running


STUBBORN_TASK = """
import asyncio
from onceward import Inbox

inbox = Inbox()
kept = []


async def stubborn():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass


@inbox.at_start
async def start(tx):
    kept.append(asyncio.create_task(stubborn()))


@inbox.on("a")
async def handle(): ...
"""


def test_a_task_of_the_start_that_does_not_stop_is_named(sqlite_url: str, tmp_path: Path) -> None:
    """The garbage collector does not list frozen objects."""
    app = tmp_path / "app.py"
    app.write_text(STUBBORN_TASK)
    with Serve(app, sqlite_url) as service:
        service.terminate()
        assert service.wait(15) == 0
        assert "was ended with the process, at " in service.log
