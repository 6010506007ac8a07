"""What the pages tell people to paste runs, in an empty folder, with the output they show.

In a section, a ``python`` block is app.py, ``sql`` prepares PostgreSQL, ``sh`` is a command, and
``text`` is the output of the command before it, where ``…`` stands for anything.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
import psycopg
import pytest

from support.postgres import Cluster
from support.processes import eventually
from tests.integration.commands import environment, post, serve, started

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PUBLISHED_PORTS = re.compile(r"(?<=127\.0\.0\.1:)(?:3000|8000)")
LONG_RUNNING = ("onceward serve", "onceward work", "uvicorn")
DATABASE_HOST = "@localhost/"
FAILING_APP = """
from onceward import Inbox

inbox = Inbox()

@inbox.on("order.paid", max_attempts=1)
async def billing():
    raise ConnectionError("billing is still down")
"""
STOP_SECONDS = 30

pytestmark = pytest.mark.skipif(
    not shutil.which("curl"), reason="curl, which the pages tell people to paste, is missing"
)


def section(document: str, heading: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block below a heading."""
    text = (ROOT / document).read_text()
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"{document} has no section {heading!r}"
    return BLOCK.findall(rest.partition("\n## ")[0])


def pattern(expected: str) -> re.Pattern[str]:
    parts = (re.escape(part) for part in expected.strip().split("…"))
    return re.compile(".*".join(parts), re.DOTALL)


@dataclass
class Reader:
    """A person who pastes each block into a terminal."""

    folder: Path
    port: int
    processes: ExitStack
    cluster: Cluster | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def paste(self, language: str, text: str, expected: str | None) -> None:
        match language:
            case "python":
                (self.folder / "app.py").write_text(text)
            case "sql":
                self._prepare_database(text)
            case "sh":
                self._type(text.strip(), expected)

    def _prepare_database(self, script: str) -> None:
        assert self.cluster is not None
        with psycopg.connect(self.cluster.url("postgres"), autocommit=True) as connection:
            for statement in filter(str.strip, script.split(";")):
                connection.execute(statement.encode())

    def _type(self, command: str, expected: str | None) -> None:
        if command.startswith("export "):
            for line in command.splitlines():
                name, _, value = line.removeprefix("export ").partition("=")
                self.variables[name] = self._here(value)
        elif command.startswith(LONG_RUNNING):
            self.processes.enter_context(self._running(self._here(command)))
        elif expected is None:
            assert self._run(command).returncode == 0
        elif command.startswith("curl"):
            self._read_until(command, expected)
        else:
            done = self._run(command)
            shown = done.stdout.strip().replace(self._here(DATABASE_HOST), DATABASE_HOST)
            assert pattern(expected).fullmatch(shown), f"{command}\n{done.stdout}{done.stderr}"

    def _read_until(self, command: str, expected: str) -> None:
        """Repeat a request until it returns what the document shows: jobs take a moment."""
        outputs = [""]

        def is_shown() -> bool:
            outputs.append(self._run(command).stdout.strip())
            return pattern(expected).fullmatch(outputs[-1]) is not None

        try:
            eventually(is_shown, command)
        except AssertionError:
            pytest.fail(f"{command}\nexpected: {expected}\nreturned: {outputs[-1]}")

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", self._here(command)],
            cwd=self.folder, env=self._environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip

    @contextmanager
    def _running(self, command: str) -> Iterator[None]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                cwd=self.folder, env=self._environment(), stdout=log, stderr=log,
            )  # fmt: skip
        try:
            if "work" not in command.split():
                eventually(self._is_listening, f"{command} listens")
            yield
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _here(self, command: str) -> str:
        """Adapt a command to the test's port and database."""
        command = PUBLISHED_PORTS.sub(str(self.port), command)
        to = f"--to http://127.0.0.1:{self.port}/webhooks"
        command = re.sub(r"onceward send (\w+)(?!.*--to)", rf"onceward send \1 {to}/\1", command)
        command = re.sub(r"^(onceward serve|uvicorn)", rf"\1 --port {self.port}", command)
        if self.cluster is not None:
            command = command.replace(DATABASE_HOST, f"@127.0.0.1:{self.cluster.port}/")
        return command

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return environment(PATH=path, **self.variables)


@contextmanager
def reading(folder: Path, cluster: Cluster | None = None) -> Iterator[Reader]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as processes:
        yield Reader(folder, port, processes, cluster)


@pytest.fixture
def shop_cluster(postgres_cluster: Cluster) -> Iterator[Cluster]:
    """Return a server, and drop the role and the database that the documents create on it."""
    postgres_cluster.start()
    yield postgres_cluster
    with psycopg.connect(postgres_cluster.url("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
        connection.execute("DROP ROLE IF EXISTS shop")


def paste_all(reader: Reader, document: str, heading: str) -> None:
    blocks = section(document, heading)
    for (language, text), (following, expected) in pairwise([*blocks, ("", "")]):
        reader.paste(language, text, expected if following == "text" else None)


@pytest.mark.parametrize(
    ("document", "heading"),
    [("README.md", "Quickstart"), ("docs/quickstart.md", "One script on SQLite")],
)
def test_a_quickstart_on_sqlite_runs_as_shown(tmp_path: Path, document: str, heading: str) -> None:
    with reading(tmp_path) as reader:
        paste_all(reader, document, heading)
    assert (tmp_path / "onceward.db").exists()


@pytest.mark.parametrize("document", ["docs/inline.md", "docs/stale-events.md", "docs/filters.md"])
def test_a_page_about_a_feature_runs_as_shown(tmp_path: Path, document: str) -> None:
    with reading(tmp_path) as reader:
        paste_all(reader, document, "Try it")


@pytest.mark.parametrize("heading", ["In a FastAPI app", "A service on PostgreSQL"])
def test_a_quickstart_on_postgresql_runs_as_shown(
    tmp_path: Path, shop_cluster: Cluster, heading: str
) -> None:
    with reading(tmp_path, shop_cluster) as reader:
        paste_all(reader, "docs/quickstart.md", heading)


def test_the_quickstarts_show_their_results() -> None:
    for document, heading in (
        ("README.md", "Quickstart"),
        ("docs/quickstart.md", "One script on SQLite"),
        ("docs/quickstart.md", "In a FastAPI app"),
        ("docs/quickstart.md", "A service on PostgreSQL"),
    ):
        shown = "".join(text for language, text in section(document, heading) if language == "text")
        for fact in ('"duplicate":true', '"status":"done"', '"last_error":"'):
            assert fact in shown, f"{document}: {heading} does not show {fact}"


@pytest.mark.skipif(not shutil.which("jq"), reason="jq, which the loop uses, is missing")
def test_the_loop_requeues_each_failed_job_once_even_if_it_fails_again(tmp_path: Path) -> None:
    ((_, loop),) = section("docs/operating.md", "Act on many")
    (tmp_path / "app.py").write_text(FAILING_APP)
    with started(*serve("app.py", "--dev"), cwd=tmp_path) as running:

        def failed_after(attempts: int) -> bool:
            jobs = httpx.get(f"{running.address}/admin/jobs?status=failed").json()["items"]
            return [job["attempts"] for job in jobs] == [attempts] * 5

        for number in range(5):
            assert post(running.address, f"evt_{number}").status_code == 202
        eventually(lambda: failed_after(1), "the jobs have failed")
        pasted = loop.replace("https://inbox.example", running.address).replace("=200", "=2")
        done = subprocess.run(
            ["/bin/sh", "-c", pasted],
            env=environment(), capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        eventually(lambda: failed_after(2), "the jobs have failed again")
        entries = httpx.get(f"{running.address}/admin/audit").json()["items"]
    assert sorted(entry["job_id"] for entry in entries) == ["1", "2", "3", "4", "5"]
