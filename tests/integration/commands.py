"""The real command line, in processes of their own."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import httpx
import msgspec

from support.processes import COMMAND, Item

SECONDS = 30


@dataclass
class Started:
    """A command that goes on running."""

    facts: Item
    process: subprocess.Popen[str]
    log_path: Path

    @property
    def address(self) -> str:
        """Where it listens."""
        address: str = self.facts["address"]
        return address

    @property
    def log(self) -> str:
        """What it wrote to standard error."""
        return self.log_path.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; answers with its exit code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would steer the command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
    return kept | more


# Most of the time that a short command takes goes into imports. So one process does them, and
# each command is a child of it: with its own memory, folder, environment and exit code.
NURSERY = """
import json, os, signal, sys, traceback
from onceward.cli import _running as running
from onceward.cli import main
from onceward.store.postgres import store as postgres
from onceward.store.sqlite import store as sqlite

def command(asked):
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    for number in (1, 2):
        os.dup2(os.open(asked["out"][number - 1], os.O_WRONLY), number)
    signal.alarm(20)  # a command that was to be refused, and runs
    code = 1
    try:
        main(asked["arguments"])
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        command(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _nursery() -> subprocess.Popen[str]:
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end, nursery)
    return nursery


def _end(nursery: subprocess.Popen[str]) -> None:
    nursery.kill()
    nursery.communicate()


@dataclass(frozen=True)
class Ended:
    """A command that has come to its end."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object, cwd: Path, **env: str) -> Ended:
    """Run a command to its end."""
    nursery = _nursery()
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        asked = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "env": environment(**env),
            "out": [out.name, err.name],
        }
        nursery.stdin.write(json.dumps(asked) + "\n")
        nursery.stdin.flush()
        code = int(nursery.stdout.readline())
        return Ended(code, Path(out.name).read_text(), Path(err.name).read_text())


@contextmanager
def started(*arguments: object, cwd: Path, **env: str) -> Iterator[Started]:
    """Run a command with --json until it is left."""
    with tempfile.NamedTemporaryFile("w") as log:
        process = subprocess.Popen(
            [COMMAND, *map(str, arguments), "--json"],
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
    """The arguments that serve an app on a free port."""
    return ("serve", app, "--port", 0, *arguments)


def post(address: str, event_id: str, event_type: str = "order.paid") -> httpx.Response:
    """Send an event to a service that is open."""
    body = {"event_id": event_id, "event_type": event_type, "payload": {}}
    return httpx.post(f"{address}/events/ingest", json=body, timeout=10)
