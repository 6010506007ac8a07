"""The real ``onceward`` commands as processes: start, post, wait until idle, kill."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
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
CHARGES = ROOT / "examples" / "charges.py"
PLANS = ROOT / "examples" / "plans.py"
METRICS = ROOT / "examples" / "metrics.py"
PAID_ORDERS = ROOT / "examples" / "paid_orders.py"
FORWARDING = ROOT / "examples" / "forwarding.py"
FORWARD_RECEIVER = ROOT / "examples" / "receiver.py"
ORDERS = ROOT / "examples" / "orders.py"
INLINE_CREDITS = ROOT / "examples" / "inline_credits.py"
COMMAND = Path(sys.executable).with_name("onceward")

PRELOADED = [
    "pytest",
    *("onceward.cli.serve", "onceward.cli.work"),
    *("onceward.store.postgres.store", "onceward.store.sqlite.store"),
]

START_SECONDS = 30.0
WAIT_SECONDS = 20.0
READY_SECONDS = 3.0
POLL_SECONDS = 0.01
MAX_POLL_SECONDS = 0.05
OUT, LOG = "out", "log"

T = TypeVar("T")
Item = dict[str, Any]

_FAILPOINT = re.compile(r"^failpoint ([\w.]+): (?:kill|stop)$", re.MULTILINE)


class StartupFailed(Exception):
    """A process exited before it reported that it had started; the message ends with its log."""


class ConditionTimeout(AssertionError):
    """A condition did not come true in time."""


def eventually(condition: Callable[[], T], what: str, seconds: float = WAIT_SECONDS) -> T:
    """Poll until `condition` returns a true value, and return that value.

    Raise ConditionTimeout after `seconds`; `what` describes the condition in the message.
    """
    deadline, pause = time.monotonic() + seconds, POLL_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise ConditionTimeout(f"{what}: not within {seconds:g} s")
        time.sleep(pause)  # between two looks: nothing announces the condition
        pause = _next_pause(pause)
    return value


async def eventually_async(
    condition: Callable[[], Awaitable[T]], what: str, seconds: float = WAIT_SECONDS
) -> T:
    """Poll as `eventually` does, without blocking the event loop."""
    deadline, pause = time.monotonic() + seconds, POLL_SECONDS
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise ConditionTimeout(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(pause)
        pause = _next_pause(pause)
    return value


def _next_pause(pause: float) -> float:
    """Return a longer pause: many polls open a connection, and a long wait would have many."""
    return min(1.5 * pause, MAX_POLL_SECONDS)


def process_state(pid: int) -> str:
    """Return the state letter of a process: T if a signal has stopped it, Z if it is dead."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Child(Protocol):
    """The part of subprocess.Popen that is used here."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit and return its code."""


class ForkedChild:
    """A child forked from a server that has imported everything, so that it starts at once."""

    def __init__(self, arguments: list[str], environment: dict[str, str], folder: Path) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, __name__])
        self._process: ForkServerProcess = context.Process(
            target=_run_forked, args=(arguments, environment, folder), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit and return its code."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("onceward", timeout or 0.0)
        return self._process.exitcode


def _run_forked(arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    from onceward.cli import main  # noqa: PLC0415 - only the child needs it

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
            start_new_session=True,  # Ctrl-C is for the tests alone
        )


class Process:
    """One ``onceward`` command.

    The constructor returns when the command has started, or raises StartupFailed. Leaving the
    context kills the process.
    """

    def __init__(
        self,
        command: str,
        app: Path,
        database: str,
        *options: str,
        failpoints: str = "",
        forked: bool = False,
        environment: Mapping[str, str] | None = None,
        **settings: float | str,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="onceward-")
        arguments = [command, str(app), "--json", "--database", database, *options]
        start: Callable[..., Child] = ForkedChild if forked else _spawn
        variables = _environment(failpoints, settings) | dict(environment or {})
        self._child = start(arguments, variables, Path(self._folder.name))
        try:
            self.startup_info: Item = msgspec.json.decode(self._first_line())
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
        """Return the process id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Return whether the process is alive; a suspended one is."""
        return self._child.poll() is None

    @property
    def log(self) -> str:
        """Return its standard error so far."""
        return self._read(LOG).decode(errors="replace")

    @property
    def failpoint(self) -> str | None:
        """Return the failpoint that killed or stopped the process, if one did."""
        return failpoint_in(self.log)

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        self._signal(signal.SIGKILL)
        self._child.wait()

    def suspend(self) -> None:
        """Send SIGSTOP and wait until the process has stopped."""
        self._signal(signal.SIGSTOP)
        self.wait_until_suspended()

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def wait_until_suspended(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a signal, for example from a failpoint, has stopped the process."""

        def has_stopped() -> bool:
            assert self.running, f"the process exited:\n{self.log}"
            return process_state(self.pid) == "T"

        eventually(has_stopped, f"process {self.pid} is suspended", seconds)

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send SIGTERM, or another signal that starts a graceful shutdown."""
        self._signal(number)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        """Wait for the exit and return its code, which is negative after a signal."""
        return self._child.wait(seconds)

    def close(self) -> None:
        """Kill the process, if it still runs, and delete its files."""
        self.kill()
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it may have died since `running` was read
            if self.running:
                os.kill(self.pid, number)

    def _read(self, name: str) -> bytes:
        file = Path(self._folder.name) / name
        return file.read_bytes() if file.exists() else b""

    def _first_line(self) -> bytes:
        def has_started_or_exited() -> bool:
            return b"\n" in self._read(OUT) or not self.running

        eventually(has_started_or_exited, "the process has started", START_SECONDS)
        line, newline, _ = self._read(OUT).partition(b"\n")
        if not newline:
            raise StartupFailed(f"{self._child} did not start:\n{self.log}")
        return line


class Transport(httpx.HTTPTransport):
    """A transport that many threads may share.

    It never closes a connection as surplus or expired: httpcore 1.0 may close one that it has just
    assigned to another thread (encode/httpcore#1110).
    """

    def __init__(self) -> None:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=None
        )
        # Loading the certificates takes time, and nothing here uses TLS.
        super().__init__(limits=limits, verify=False)


class Serve(Process):
    """``onceward serve --dev`` on a free port."""

    def __init__(
        self,
        app: Path,
        database: str,
        *options: str,
        failpoints: str = "",
        forked: bool = False,
        environment: Mapping[str, str] | None = None,
        **settings: float | str,
    ) -> None:
        self._http: httpx.Client | None = None
        super().__init__(
            "serve", app, database, "--dev", "--port", "0", *options,
            failpoints=failpoints, forked=forked, environment=environment, **settings,
        )  # fmt: skip
        self.raw_db = RawDatabase(database)
        self.address: str = self.startup_info["address"]
        self._http = httpx.Client(base_url=self.address, timeout=10.0, transport=Transport())

    @property
    def http(self) -> httpx.Client:
        """Return a client for this service."""
        assert self._http is not None
        return self._http

    def post(self, event_id: str, event_type: str, payload: object) -> httpx.Response:
        """Send an event and return the response."""
        body = {"event_id": event_id, "event_type": event_type, "payload": payload}
        return self.http.post("/events/ingest", json=body)

    def accept(self, event_id: str, event_type: str, payload: object) -> Item:
        """Send an event that must be accepted, and return its receipt."""
        response = self.post(event_id, event_type, payload)
        assert response.status_code == 202, response.text
        receipt: Item = response.json()
        return receipt

    def items(self, kind: str, **filters: str) -> list[Item]:
        """Return all pages of a list of the admin API, newest first."""
        items: list[Item] = []
        after: dict[str, str] = {}
        while True:
            parameters = {"limit": "1000", **filters, **after}
            response = self.http.get(f"/admin/{kind}", params=parameters)
            assert response.status_code == 200, response.text
            page = response.json()
            items += page["items"]
            if page["next"] is None:
                return items
            after = {"after": page["next"]}

    def job(self, event_id: str) -> Item:
        """Return the only job of an event."""
        (job,) = self.items("jobs", event_id=event_id)
        return job

    def requeue(self, job: str, *, actor: str, reason: str, **more: Any) -> httpx.Response:
        """Requeue a job that ended and return the response."""
        body = {"actor": actor, "reason": reason, **more}
        return self.http.post(f"/admin/jobs/{job}/requeue", json=body)

    def is_ready(self) -> bool:
        """Return whether the service says that it can use its ledger."""
        try:
            return self.http.get("/readyz", timeout=READY_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    def is_idle(self) -> bool:
        """Return whether no job is queued or in progress.

        A single statement decides: between two requests a job could change its status.
        """
        statement = "SELECT count(*) FROM onceward.jobs WHERE status = 'queued'"
        return int(self.raw_db.value(statement)) == 0

    def wait_until_idle(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until no job is queued or in progress."""
        eventually(self.is_idle, "every job has ended", seconds)

    def close(self) -> None:
        """Kill the process and close the client."""
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
        environment: Mapping[str, str] | None = None,
        **settings: float | str,
    ) -> None:
        super().__init__(
            "work", app, database, *options,
            failpoints=failpoints, forked=forked, environment=environment, **settings,
        )  # fmt: skip


def failpoint_in(log: str) -> str | None:
    """Return the failpoint that a log reports, if any."""
    match = _FAILPOINT.search(log)
    return match[1] if match else None


def _environment(failpoints: str, settings: dict[str, float | str]) -> dict[str, str]:
    """Return this process's environment with `settings` as the only ones of Onceward."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")
    }
    own = {f"ONCEWARD_{name.upper()}": str(value) for name, value in settings.items()}
    return inherited | own | ({"ONCEWARD_FAILPOINTS": failpoints} if failpoints else {})
