"""The real commands in processes of their own: start, post, wait for rest, kill."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import httpx
import msgspec

from support.database import RawDatabase

ROOT = Path(__file__).parents[1]
APPS = ROOT / "tests" / "apps"
SUBSCRIPTIONS = ROOT / "examples" / "subscriptions.py"
COMMAND = Path(sys.executable).with_name("onceward")

START_SECONDS = 30.0
REST_SECONDS = 20.0
POLL_SECONDS = 0.01
OUT, LOG = "out", "log"

T = TypeVar("T")
Item = dict[str, Any]

_FAILPOINT = re.compile(r"^failpoint ([\w.]+): (?:kill|stop)$", re.MULTILINE)


class Died(Exception):
    """A process ended before it said that it had started; the message ends with its log."""


class TooLate(AssertionError):
    """What a test waited for did not come in time."""


def eventually(look: Callable[[], T], what: str, seconds: float = REST_SECONDS) -> T:
    """Look again and again until there is something to see; answers with that."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise TooLate(f"{what}: not within {seconds:g} s")
        time.sleep(POLL_SECONDS)
    return seen


class Child(Protocol):
    """What is needed of a child process; subprocess.Popen has it."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, negative after a signal; None while it lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""


class Forked:
    """A child that is forked from a server which has everything imported: it starts in no time."""

    def __init__(self, arguments: list[str], environment: dict[str, str], folder: Path) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["pytest", "uvloop", "onceward.cli", __name__])
        self._process: ForkServerProcess = context.Process(
            target=_run_forked, args=(arguments, environment, folder), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative after a signal; None while it lives."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("onceward", timeout or 0.0)
        return self._process.exitcode


def _run_forked(arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    from onceward.cli import main  # noqa: PLC0415 - in the child alone

    os.setsid()
    for number, name in ((1, OUT), (2, LOG)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    main(arguments)


def _spawn(arguments: list[str], environment: dict[str, str], folder: Path) -> Child:
    with (folder / OUT).open("ab") as out, (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            cwd=ROOT,
            env=environment,
            start_new_session=True,  # an interrupt at the keyboard is for the tests alone
        )


class Process:
    """One ``onceward`` command. It has started when it is made, and is dead when it is left."""

    def __init__(
        self,
        command: str,
        app: Path,
        database: str,
        *options: str,
        failpoints: str = "",
        forked: bool = False,
        **settings: float | str,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="onceward-")
        arguments = [command, str(app), "--json", "--database", database, *options]
        start: Callable[..., Child] = Forked if forked else _spawn
        self._child = start(arguments, _environment(failpoints, settings), Path(self._folder.name))
        try:
            self.facts: Item = msgspec.json.decode(self._first_line())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            sys.stderr.write(self.log)
        self.close()

    @property
    def pid(self) -> int:
        """Its id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it is alive; a frozen one is."""
        return self._child.poll() is None

    @property
    def log(self) -> str:
        """What it wrote to standard error."""
        return self._read(LOG).decode(errors="replace")

    @property
    def failpoint(self) -> str | None:
        """The failpoint at which it was killed or stopped, if one was reached."""
        return reached(self.log)

    def kill(self) -> None:
        """SIGKILL: as if the power of the process were cut."""
        self._signal(signal.SIGKILL)
        self._child.wait()

    def freeze(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self._signal(signal.SIGSTOP)
        self.wait_until_frozen()

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def wait_until_frozen(self, seconds: float = REST_SECONDS) -> None:
        """Wait until it stands still, whoever stopped it."""

        def state() -> str:
            assert self.running, f"it ended:\n{self.log}"
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

        eventually(lambda: state() == "T", f"process {self.pid} stands still", seconds)

    def terminate(self) -> None:
        """SIGTERM: ask it to drain and end."""
        self._signal(signal.SIGTERM)

    def wait(self, seconds: float = REST_SECONDS) -> int:
        """Wait for its end; answers with its exit code, which is negative after a signal."""
        return self._child.wait(seconds)

    def close(self) -> None:
        """End it, in whatever state it is."""
        self.kill()
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it may be dead, and its end not yet noticed
            if self.running:
                os.kill(self.pid, number)

    def _read(self, name: str) -> bytes:
        file = Path(self._folder.name) / name
        return file.read_bytes() if file.exists() else b""

    def _first_line(self) -> bytes:
        def look() -> bool:
            return b"\n" in self._read(OUT) or not self.running

        eventually(look, "the process has started", START_SECONDS)
        line, ended, _ = self._read(OUT).partition(b"\n")
        if not ended:
            raise Died(f"{self._child} did not start:\n{self.log}")
        return line


class Transport(httpx.HTTPTransport):
    """A transport that many threads may use.

    It closes no connection while it is in use: httpcore 1.0 may close one as surplus or expired
    that it has just given to another thread (encode/httpcore#1110).
    """

    def __init__(self) -> None:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=None
        )
        # Without TLS there is nothing to verify, and no time lost on reading certificates.
        super().__init__(limits=limits, verify=False)


class Serve(Process):
    """``onceward serve --dev``, on a port of its own."""

    def __init__(
        self,
        app: Path,
        database: str,
        *options: str,
        failpoints: str = "",
        forked: bool = False,
        **settings: float | str,
    ) -> None:
        self._http: httpx.Client | None = None
        super().__init__(
            "serve", app, database, "--dev", "--port", "0", *options,
            failpoints=failpoints, forked=forked, **settings,
        )  # fmt: skip
        self.raw_db = RawDatabase(database)
        self.address: str = self.facts["address"]
        self._http = httpx.Client(base_url=self.address, timeout=10.0, transport=Transport())

    @property
    def http(self) -> httpx.Client:
        """A client for this service alone."""
        assert self._http is not None
        return self._http

    def post(self, event_id: str, event_type: str, payload: object) -> httpx.Response:
        """Send an event."""
        body = {"event_id": event_id, "event_type": event_type, "payload": payload}
        return self.http.post("/events/ingest", json=body)

    def accept(self, event_id: str, event_type: str, payload: object) -> Item:
        """Send an event that must be accepted; answers with the receipt."""
        response = self.post(event_id, event_type, payload)
        assert response.status_code == 202, response.text
        receipt: Item = response.json()
        return receipt

    def items(self, kind: str, **filters: str) -> list[Item]:
        """A whole list of the admin API, the newest first."""
        found: list[Item] = []
        after: dict[str, str] = {}
        while True:
            parameters = {"limit": "1000", **filters, **after}
            response = self.http.get(f"/admin/{kind}", params=parameters)
            assert response.status_code == 200, response.text
            page = response.json()
            found += page["items"]
            if page["next"] is None:
                return found
            after = {"after": page["next"]}

    def job(self, event_id: str) -> Item:
        """The only job of an event."""
        (job,) = self.items("jobs", event_id=event_id)
        return job

    def requeue(self, job: str, *, actor: str, reason: str) -> httpx.Response:
        """Queue a failed job again."""
        return self.http.post(f"/admin/jobs/{job}/requeue", json={"actor": actor, "reason": reason})

    def at_rest(self) -> bool:
        """Whether no job is left to do. Looked up in one statement: a job may move between two."""
        statement = "SELECT count(*) FROM onceward.jobs WHERE status = 'queued'"
        return int(self.raw_db.value(statement)) == 0

    def wait_until_at_rest(self, seconds: float = REST_SECONDS) -> None:
        """Wait until no job is left to do."""
        eventually(self.at_rest, "no job is left to do", seconds)

    def close(self) -> None:
        """End it, and let go of the client."""
        if self._http is not None:
            self._http.close()
        super().close()


class Work(Process):
    """``onceward work``."""

    def __init__(
        self,
        app: Path,
        database: str,
        *options: str,
        failpoints: str = "",
        forked: bool = False,
        **settings: float | str,
    ) -> None:
        super().__init__(
            "work", app, database, *options, failpoints=failpoints, forked=forked, **settings
        )


def reached(log: str) -> str | None:
    """The failpoint that a log tells of, if there is one."""
    found = _FAILPOINT.search(log)
    return found[1] if found else None


def _environment(failpoints: str, settings: dict[str, float | str]) -> dict[str, str]:
    """This process's environment, without what would steer Onceward, and with `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
    given = {f"ONCEWARD_{name.upper()}": str(value) for name, value in settings.items()}
    return kept | given | ({"ONCEWARD_FAILPOINTS": failpoints} if failpoints else {})
