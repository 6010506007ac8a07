"""Run the real command line in separate processes."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import httpx
import msgspec

from support.processes import COMMAND, Item

STOP_SECONDS = 30
APP = """
from onceward import Inbox

inbox = Inbox({arguments})
inbox.source("stripe", secrets=["whsec_the_secret_of_stripe"])

@inbox.on("order.paid")
async def credit(event):
    pass
"""


@dataclass
class Started:
    """A running command."""

    facts: Item
    process: subprocess.Popen[str]
    log_path: Path

    @property
    def address(self) -> str:
        """The address it listens on."""
        address: str = self.facts["address"]
        return address

    @property
    def log(self) -> str:
        """The standard error so far."""
        return self.log_path.read_text()

    def stop(self, stop_signal: signal.Signals = signal.SIGTERM) -> int:
        """Signal the command to stop, and return its exit code."""
        self.process.send_signal(stop_signal)
        return self.process.wait(STOP_SECONDS)


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without Onceward's variables."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")
    }
    return inherited | more


# A short command spends most of its time importing. This process imports once and forks a child
# per command, with its own memory, folder, environment and exit code.
FORK_SERVER = """
import json, os, signal, sys, traceback
from importlib import import_module
from onceward.cli import COMMANDS, main
for module in ("cli._banner", "store.postgres.store", "store.sqlite.store"):
    import_module(f"onceward.{module}")
for command in COMMANDS:
    import_module(f"onceward.cli.{command}")
import_module("duckdb")  # of the archive

def run(command):
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    for fd, path in enumerate(command["outputs"], start=1):
        os.dup2(os.open(path, os.O_WRONLY), fd)
    signal.alarm(20)  # kills a command that should have failed but runs
    code = 1
    try:
        main(command["arguments"])
    except SystemExit as exited:
        code = exited.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _fork_server() -> subprocess.Popen[str]:
    fork_server = subprocess.Popen(
        [sys.executable, "-c", FORK_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_kill, fork_server)
    return fork_server


def _kill(fork_server: subprocess.Popen[str]) -> None:
    fork_server.kill()
    fork_server.communicate()


@dataclass(frozen=True)
class Finished:
    """A command that has exited."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object, cwd: Path, **env: str) -> Finished:
    """Run a command until it exits."""
    fork_server = _fork_server()
    assert fork_server.stdin is not None
    assert fork_server.stdout is not None
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        command = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "env": environment(**env),
            "outputs": [out.name, err.name],
        }
        fork_server.stdin.write(json.dumps(command) + "\n")
        fork_server.stdin.flush()
        code = int(fork_server.stdout.readline())
        return Finished(code, Path(out.name).read_text(), Path(err.name).read_text())


@contextmanager
def started(
    *arguments: object, cwd: Path, launcher: Sequence[str] = (), **env: str
) -> Iterator[Started]:
    """Run a command with --json until the block ends, then kill it."""
    with tempfile.NamedTemporaryFile("w") as log:
        process = subprocess.Popen(
            [*launcher, COMMAND, *map(str, arguments), "--json"],
            cwd=cwd,
            env=environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, Path(log.name).read_text()
                yield Started(msgspec.json.decode(line), process, Path(log.name))
            finally:
                process.kill()


def serve(app: object, *arguments: object) -> tuple[object, ...]:
    """Return the arguments that serve an app on a free port."""
    return ("serve", app, "--port", 0, *arguments)


def post(address: str, event_id: str, event_type: str = "order.paid") -> httpx.Response:
    """Post an event to a service in --dev mode."""
    body = {"event_id": event_id, "event_type": event_type, "payload": {}}
    return httpx.post(f"{address}/events/ingest", json=body, timeout=10)


def error_of(*arguments: object, cwd: Path, **env: str) -> str:
    """Run a command that must fail with exit code 2, and return its error message."""
    done = run(*arguments, cwd=cwd, **env)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines
    assert all(line.startswith("onceward: ") for line in lines)
    return done.stderr
