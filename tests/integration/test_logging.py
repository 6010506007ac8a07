"""The log of the command line: its form, and whose lines it has."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from support.processes import eventually
from tests.integration.commands import Started, post, run, serve, started

APP = """
from onceward import Inbox, PermanentError

inbox = Inbox()

@inbox.on("order.paid")
async def credit(event):
    raise PermanentError("no such order")
"""
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder that contains an app whose handler fails."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def log_of(running: Started) -> str:
    """Return the log once the event has failed."""
    assert post(running.facts["address"], "evt_1").status_code == 202
    return eventually(
        lambda: text if "failed for good" in (text := running.log) else "",
        "the failure is logged",
    )


def test_text_is_the_default_and_does_not_depend_on_json(folder: Path) -> None:
    with started(*serve("app.py", "--dev"), cwd=folder) as running:
        line, frame = log_of(running).splitlines()
    assert re.fullmatch(
        rf"{TIME} ERROR   onceward\.work: job \d+ of handler 'credit' failed for good after "
        r"1 attempt \(permanent\): no such order \(app\.py:8 in credit\); requeue it when the "
        r"cause is fixed event_id=evt_1 source=ingest type=order\.paid max_attempts=\d+",
        line,
    )
    assert frame == "    app.py:8 in credit"


def test_json_lines_have_the_fields_at_their_top_level(folder: Path) -> None:
    options = ("--dev", "--log", "json", "--access-log")
    with started(*serve("app.py", *options), cwd=folder) as running:
        entries: list[dict[str, Any]] = [json.loads(line) for line in log_of(running).splitlines()]
    access, failure = sorted(entries, key=lambda entry: str(entry["logger"]))
    assert re.fullmatch(TIME, access["at"])
    assert (access["level"], access["logger"]) == ("info", "onceward.access")
    assert (access["method"], access["path"], access["status"]) == ("POST", "/events/ingest", 202)
    assert (access["client"], access["outcome"]) == ("127.0.0.1", "recorded")
    assert (failure["level"], failure["handler"]) == ("error", "credit")
    assert (failure["event_id"], failure["attempt"]) == ("evt_1", 1)
    assert failure["traceback"] == "app.py:8 in credit"


@pytest.mark.parametrize("command", ["serve", "work", "migrate", "secrets"])
def test_an_unknown_form_is_refused(command: str, folder: Path) -> None:
    done = run(command, "app.py", "--log", "xml", cwd=folder)
    assert done.returncode == 2
    assert "'text', 'json'" in done.stderr


# Whose lines are logged.

CALLING_APP = """
import logging

import httpx

from onceward import Inbox

inbox = Inbox()

@inbox.on("order.paid")
def charge(event):
    httpx.get("{url}/?api_key={key}")
    logging.getLogger(__name__).info("charged")
    logging.getLogger(__name__).error("the handler has run")
"""
API_KEY = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"


class Silent(BaseHTTPRequestHandler):
    """Respond 200, and log nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def calling_folder(tmp_path: Path) -> Iterator[Path]:
    """Create a folder that contains an app whose handler calls an API with a key in the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as api:
        Thread(target=api.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{api.server_port}"
        (tmp_path / "app.py").write_text(CALLING_APP.format(url=url, key=API_KEY))
        yield tmp_path
        api.shutdown()


@pytest.mark.parametrize(
    ("options", "informing"),
    [
        ((), {"app", "onceward"}),
        (("--log-level", "info"), {"app", "httpx", "onceward"}),
        (("--log-level", "warning"), set()),
    ],
)
def test_other_libraries_log_their_calls_only_if_asked(
    calling_folder: Path, options: tuple[str, ...], informing: set[str]
) -> None:
    with started(*serve("app.py", "--dev", "--access-log", *options), cwd=calling_folder) as it:
        assert post(it.address, "evt_1").status_code == 202
        eventually(lambda: "the handler has run" in it.log, "the handler has run")
        log = it.log
    assert set(re.findall(rf"^{TIME} INFO +(\w+)", log, re.MULTILINE)) == informing
    assert (API_KEY in log) is ("httpx" in informing)
