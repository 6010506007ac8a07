"""Processes of an older version beside a schema that a newer one has migrated."""

from pathlib import Path

import httpx
import pytest

from onceward import Inbox
from support.database import RawDatabase
from support.processes import Process, Serve, eventually
from tests.factories import CREDIT, arrival, opened, record
from tests.integration.commands import error_of

pytestmark = pytest.mark.every_store

NEWER = "INSERT INTO onceward.migrations (number, name) VALUES (9999, 'from_the_future')"
SENTENCE = "and the database has 9999"
APP = """
import asyncio
from onceward import Inbox

inbox = Inbox()
inbox.source("stripe", secrets=["whsec_the_secret_of_stripe"])

@inbox.on("invoice.paid")
async def credit(event, tx):
    await asyncio.sleep(event.payload["seconds"])
    await tx.fetch("SELECT 1")
"""
COMMANDS = (
    ("serve", "app.py", "--port", "0"),
    ("work", "app.py"),
    ("migrate", "app.py"),
    ("migrate",),
    ("maintain", "app.py"),
    ("secrets", "app.py"),
    ("archive", "ls"),
)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    file = tmp_path / "app.py"
    file.write_text(APP)
    return file


async def test_no_command_starts(
    bare_database_url: str, app: Path, subtests: pytest.Subtests
) -> None:
    async with opened(bare_database_url):
        pass
    RawDatabase(bare_database_url).rows(NEWER)
    archive = app.parent / "archive"
    archive.mkdir()
    env = {"ONCEWARD_DATABASE_URL": bare_database_url, "ONCEWARD_ARCHIVE": f"file://{archive}"}
    for command in COMMANDS:
        with subtests.test(" ".join(command)):
            error = error_of(*command, cwd=app.parent, **env)
            assert f"{SENTENCE} from_the_future: a newer version migrated it. Stop all" in error


async def test_a_mounted_inbox_responds_503(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database_url):
        pass
    RawDatabase(database_url).rows(NEWER)
    transport = httpx.ASGITransport(app=Inbox(database_url).asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as http:
        assert (await http.post("/events/ingest")).status_code == 503
    assert f"{SENTENCE} from_the_future" in caplog.text


def test_a_server_that_runs_responds_503_and_says_why(database_url: str, app: Path) -> None:
    payload = {"seconds": 0}
    with Serve(app, database_url, forked=True) as service:
        service.accept("evt_1", "invoice.paid", payload)
        service.wait_until_idle()
        raw_db = RawDatabase(database_url)
        raw_db.rows(NEWER)
        for _ in range(2):
            assert service.post("evt_2", "invoice.paid", payload).status_code == 503
        ready = service.http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["message"].startswith("A newer version of Onceward migrated the")
        eventually(lambda: "no jobs can be claimed" in service.log, "no job can be claimed")
        lines = [line for line in service.log.splitlines() if "onceward.receive" in line]
        assert [SENTENCE in line for line in lines] == [True]
        assert raw_db.count("onceward.events") == 1
        raw_db.rows("DELETE FROM onceward.migrations WHERE number = 9999")  # as a restore does
        assert service.post("evt_2", "invoice.paid", payload).status_code == 202


async def test_a_worker_ends_its_jobs_and_exits(database_url: str, app: Path) -> None:
    body = b'{"seconds": 2}'
    async with opened(database_url, handlers=[CREDIT]) as store:
        await record(store, arrival("evt_1", body=body))
    raw_db = RawDatabase(database_url)
    with Process("work", app, database_url, forked=True) as worker:
        eventually(lambda: raw_db.count("onceward.leases") == 1, "the job runs")
        raw_db.rows(NEWER)
        assert worker.wait() == 2
        assert SENTENCE in worker.log.splitlines()[-1]
    assert raw_db.rows("SELECT status, attempts FROM onceward.jobs") == [("done", 1)]
