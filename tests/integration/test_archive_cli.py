"""``onceward archive``: lists, shows, verifies and restores."""

import asyncio
import base64
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.database import RawDatabase
from tests.archiving import WEEK, archived, drop_payloads, in_folder, record_at
from tests.factories import EVERYTHING, arrival, opened
from tests.integration.commands import Finished, environment, run

BODY = b'{"amount": 7}\n\0'
OPERATOR = ("--actor", "ann", "--reason", "dispute 4711")
ARCHIVE_WEEK = """
import asyncio, sys
from onceward.archive.location import make_archive
from onceward.operate.archiving import archive_week
from onceward.runtime.failpoints import Failpoints
from tests.archiving import WEEK
from tests.factories import make_store

async def main(url, archive, failpoints):
    store, points = make_store(url), Failpoints(failpoints)
    await store.open(serving=False)
    await archive_week(store, make_archive(archive, points), WEEK, failpoints=points)

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True)
class Ledger:
    """A ledger with two archived events, and its archive."""

    url: str
    folder: Path

    def run(self, *arguments: str, archive: bool = True) -> Finished:
        options = ["--database", self.url]
        options += ["--archive", self.folder.as_uri()] if archive else []
        return run("archive", *arguments, *options, cwd=self.folder)

    def json(self, *arguments: str) -> list[Any]:
        result = self.run(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def audit(self) -> list[tuple[str, str, str, str]]:
        async def load() -> list[tuple[str, str, str, str]]:
            async with opened(self.url, serving=False) as store:
                items = await store.audit(EVERYTHING)
            return [(item.action, item.subject, item.actor, item.reason) for item in items]

        return asyncio.run(load())

    def archive(self) -> None:
        async def archive() -> None:
            async with opened(self.url, serving=False) as store:
                await archived(store, in_folder(self.folder))

        asyncio.run(archive())


@pytest.fixture
def ledger(database_url: str, raw_db: RawDatabase, tmp_path: Path) -> Ledger:
    folder = tmp_path / "archive"
    folder.mkdir()

    async def prepare() -> None:
        async with opened(database_url) as store:
            await record_at(store, raw_db, arrival("evt_1", body=BODY), arrival("evt_2"))
            await archived(store, in_folder(folder))

    asyncio.run(prepare())
    return Ledger(database_url, folder)


def test_the_files_are_listed(ledger: Ledger) -> None:
    (item,) = ledger.json("ls")
    assert (item["week"], item["part"], item["rows"]) == ("20260105", 0, 2)
    assert (ledger.folder / item["path"]).stat().st_size == item["file_bytes"]
    assert "20260105" in ledger.run("ls", archive=False).stdout
    assert item["path"] in ledger.run("show", "20260105", archive=False).stdout
    assert ledger.json("show", "2026-01-07") == [item]


def test_an_event_is_shown_without_its_body(ledger: Ledger) -> None:
    (event,) = ledger.json("show", "stripe:evt_1")
    assert (event["event_id"], event["body_bytes"]) == ("evt_1", len(BODY))
    assert "body" not in event
    assert "amount" not in ledger.run("show", "stripe:evt_1").stdout
    assert ledger.audit() == []


def test_a_body_is_shown_to_a_named_person_and_audited(ledger: Ledger) -> None:
    refused = ledger.run("show", "stripe:evt_1", "--body")
    assert refused.returncode == 2
    assert "--actor and --reason must be given" in refused.stderr
    (event,) = ledger.json("show", "stripe:evt_1", "--body", *OPERATOR)
    assert base64.b64decode(event["body"]) == BODY
    assert ledger.run("show", "stripe:evt_1", "--body", *OPERATOR).stdout.encode() == BODY
    entry = ("read_archive", f"event:{event['id']}", "ann", "dispute 4711")
    assert ledger.audit() == [entry, entry]


def test_an_event_is_found_after_its_row_is_gone(ledger: Ledger) -> None:
    drop_payloads(RawDatabase(ledger.url), events=True)
    (event,) = ledger.json("show", "stripe:evt_2")
    assert event["event_id"] == "evt_2"
    missing = ledger.run("show", "stripe:evt_3")
    assert (missing.returncode, missing.stderr) == (
        2, "onceward: No archived file has the event stripe:evt_3.\n",
    )  # fmt: skip


def test_a_week_is_restored_with_a_reason(ledger: Ledger) -> None:
    raw_db = RawDatabase(ledger.url)
    drop_payloads(raw_db)
    assert ledger.run("restore", "20260105").returncode == 2
    assert raw_db.count("onceward.payloads") == 0
    (one,) = ledger.json("restore", "20260105", "--event", "stripe:evt_1", *OPERATOR)
    assert (one["payloads"], one["present"]) == (1, 0)
    result = ledger.run("restore", "20260105", *OPERATOR)
    assert result.stdout == (
        "20260105: 1 payloads restored, 0 of them with their events; 1 were present, 0 skipped\n"
    )
    entry = ("restore_archive", "archive:20260105", "ann", "dispute 4711")
    assert ledger.audit() == [entry, entry]


def test_a_damaged_file_is_listed_and_ends_with_1(ledger: Ledger) -> None:
    raw_db = RawDatabase(ledger.url)

    async def archive_another() -> None:
        async with opened(ledger.url) as store:
            await record_at(store, raw_db, arrival("evt_3"))
            await archived(store, in_folder(ledger.folder))

    asyncio.run(archive_another())
    drop_payloads(raw_db, events=True)
    _, missing = ledger.json("ls")
    (ledger.folder / missing["path"]).unlink()
    fault = f"{missing['path']}: it is missing. Restore the file from a backup"

    shown = ledger.run("show", "stripe:evt_1", "--body", *OPERATOR)
    assert (shown.returncode, shown.stdout.encode()) == (1, BODY)
    assert fault in shown.stderr
    unknown = ledger.run("show", "stripe:evt_3")
    assert unknown.returncode == 2
    assert fault in unknown.stderr

    restored = ledger.run("restore", "20260105", *OPERATOR, "--json")
    facts = json.loads(restored.stdout)
    assert (restored.returncode, facts["payloads"]) == (1, 2)
    assert [file["path"] for file in facts["damaged_files"]] == [missing["path"]]
    restored = ledger.run("restore", "20260105", *OPERATOR)
    assert (restored.returncode, fault in restored.stdout) == (1, True)


def test_a_week_has_no_body_to_show(ledger: Ledger) -> None:
    result = ledger.run("show", "20260105", "--body", *OPERATOR)
    assert (result.returncode, result.stdout) == (2, "")
    assert "--body shows the body of one event: write SOURCE:ID, not a week." in result.stderr


def test_files_are_verified(ledger: Ledger) -> None:
    (item,) = ledger.json("verify")
    assert item["fault"] is None
    path = ledger.folder / item["path"]
    path.write_bytes(path.read_bytes()[:-1])
    result = ledger.run("verify")
    assert result.returncode == 1
    assert f"{item['path']}: it has" in result.stdout


WRONG_NAMES = [
    (("show", "20261399"), "is no event"),
    (("show", "evt_1"), "is no event"),
    (("show", "20200106"), "No file of the week 20200106 is recorded"),
    (("restore", "january", *OPERATOR), "is no week"),
    (("restore", "20200106", *OPERATOR), "No file of the week 20200106"),
]


def test_a_wrong_name_is_refused(ledger: Ledger, subtests: pytest.Subtests) -> None:
    for arguments, message in WRONG_NAMES:
        with subtests.test(" ".join(arguments)):
            result = ledger.run(*arguments)
            assert result.returncode == 2
            assert message in result.stderr


def test_a_week_without_files_is_not_taken_for_verified(ledger: Ledger) -> None:
    done = ledger.run("verify", "2020-01-01")
    assert done.returncode == 2
    assert "No file of the week 20191230 is recorded" in done.stderr


def test_the_archive_and_the_database_must_be_named(ledger: Ledger) -> None:
    result = ledger.run("show", "stripe:evt_1", archive=False)
    assert "Name the archive: --archive" in result.stderr
    result = run("archive", "ls", cwd=ledger.folder)
    assert "Name the database: --database" in result.stderr
    assert not (ledger.folder / "onceward.db").exists()


def test_a_killed_archiver_never_leaves_a_record_without_a_file(
    ledger: Ledger, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for point in ("archive.written", "archive.verified", "archive.recorded"):
        with subtests.test(point):
            raw_db.rows("DELETE FROM onceward.archives")
            again = Ledger(ledger.url, ledger.folder.parent / point)
            again.folder.mkdir()
            assert archive_in_a_process(again, f"{point}:kill") == -signal.SIGKILL
            for item in again.json("verify"):
                assert item["fault"] is None
            again.archive()
            (item,) = again.json("verify")
            assert item["fault"] is None
            assert [item["rows"] for item in again.json("show", str(WEEK))] == [2]


def archive_in_a_process(ledger: Ledger, failpoints: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", ARCHIVE_WEEK, ledger.url, ledger.folder.as_uri(), failpoints],
        check=False,
        env=environment(TMPDIR=str(ledger.folder.parent)),  # a killed one leaves its folder
        cwd=Path(__file__).parents[2],
    ).returncode


RESTORE = ("restore", WEEK.label, *OPERATOR)
WRONG_TEXTS = {
    "show": (("show", "stripe:\udcff"), "is not valid Unicode"),
    "event": ((*RESTORE, "--event", "\udcff:evt_1"), "is not valid Unicode"),
    "actor": ((*RESTORE, "--actor", "\udcff"), "--actor is not valid Unicode"),
    "reason": ((*RESTORE, "--reason", "x" * 256), "--reason is 256 bytes long"),
}


def test_a_text_that_cannot_be_stored_is_refused_as_over_http(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, (arguments, reason) in WRONG_TEXTS.items():
        with subtests.test(name):
            result = run("archive", *arguments, cwd=tmp_path)
            assert result.returncode == 2
            assert reason in result.stderr
            assert "Traceback" not in result.stderr
