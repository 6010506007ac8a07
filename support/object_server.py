"""A real S3 server: SeaweedFS, whose binary comes in a wheel."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from support.memory import TEMPORARY
from support.postgres import ServerFailed, free_port
from support.processes import eventually

PROGRAM = Path(sys.executable).with_name("weed")
BUCKET = "archive"
KEY, SECRET = "key-of-a-test", "secret-of-a-test"
START_SECONDS = 60.0
PORTS = ("s3", "master", "volume", "filer")


class ObjectServer:
    """An S3 server on loopback with one bucket."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="onceward-s3-", dir=TEMPORARY))
        identity = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Read", "Write", "List"],
        }
        (self._folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self._ports = {name: free_port() for name in PORTS}
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        ports = [f"-{name}.port={port}" for name, port in self._ports.items()]
        ports += [f"-{name}.port.grpc={free_port()}" for name in PORTS]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    PROGRAM, "server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                    f"-dir={self._folder}", f"-s3.config={self._folder / 's3.json'}",
                    "-volume.max=4", "-master.volumeSizeLimitMB=256",
                    "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", *ports,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests alone
            )  # fmt: skip
        eventually(self._is_ready, "the S3 server has started", START_SECONDS)

    def freeze(self) -> None:
        """Stop the server without closing its connections."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> Self:
        try:
            self._start()
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

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a client finds the server."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://127.0.0.1:{self._ports['s3']}",
            "AWS_ALLOW_HTTP": "true",
        }

    def replace(self, path: str, content: bytes) -> None:
        """Write a file in the bucket behind the back of its clients."""
        httpx.put(self._file(path), content=content).raise_for_status()

    def content(self, path: str) -> bytes:
        """Return a file of the bucket."""
        return httpx.get(self._file(path)).raise_for_status().content

    def delete(self, path: str) -> None:
        """Delete a file of the bucket."""
        httpx.delete(self._file(path)).raise_for_status()

    def _file(self, path: str) -> str:
        return f"http://127.0.0.1:{self._ports['filer']}/buckets/{BUCKET}/{path}"

    def _is_ready(self) -> bool:
        """Return whether a file can be written. Create the bucket if it does not exist."""
        if self._process is None or self._process.poll() is not None:
            log = (self._folder / "log").read_text(errors="replace")
            raise ServerFailed(f"the S3 server did not start:\n{log[-4_000:]}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._ports["s3"])) != 0:
                return False
        try:
            self.replace("ready", b"yes")
            return self.content("ready") == b"yes"
        except httpx.HTTPError:
            return False

    def _close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
