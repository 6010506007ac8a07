"""A real pgbouncer in front of a PostgreSQL server."""

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from support.memory import TEMPORARY
from support.postgres import SUPERUSER, Cluster, ServerFailed, free_port
from support.processes import eventually
from support.programs import find_program

CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = {pool_mode}
max_client_conn = 500
{settings}
"""
POOL_SIZE = 80
"""Enough for every connection of a fleet in session mode, and below the server's limit."""


class Pgbouncer:
    """A pooler in one pool mode, such as ``session``, and otherwise with its defaults.

    Raise ProgramMissing if pgbouncer is not installed.
    """

    def __init__(
        self, cluster: Cluster, pool_mode: str, *, port: int | None = None, **settings: object
    ) -> None:
        program = find_program("pgbouncer")
        self._port = port or free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="onceward-pgbouncer-", dir=TEMPORARY))
        self._folder.chmod(0o755)  # pgbouncer does not run as root
        (self._folder / "users").write_text(f'"{SUPERUSER}" ""\n')
        configuration = self._folder / "pgbouncer.ini"
        settings = {"default_pool_size": POOL_SIZE} | settings
        configuration.write_text(
            CONFIGURATION.format(
                server_port=cluster.port,
                port=self._port,
                folder=self._folder,
                pool_mode=pool_mode,
                settings="\n".join(f"{name} = {value}" for name, value in settings.items()),
            )
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, configuration],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests alone
                user=cluster.account.user,
                group=cluster.account.group,
                extra_groups=cluster.account.extra_groups,
            )

    def __enter__(self) -> Self:
        try:
            eventually(self._accepts_connections, "pgbouncer has started")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def url(self, direct_url: str) -> str:
        """Return the URL through the pooler of a database, which is given by its own URL."""
        netloc = f"{SUPERUSER}@127.0.0.1:{self._port}"
        return urlsplit(direct_url)._replace(netloc=netloc).geturl()

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _accepts_connections(self) -> bool:
        if self._process.poll() is not None:
            raise ServerFailed(f"pgbouncer did not start:\n{self._log.read_text()[-4_000:]}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
