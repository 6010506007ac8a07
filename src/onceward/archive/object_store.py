"""Files of the archive in an S3-compatible object store, by obstore.

The options come from the usual environment variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT, AWS_ALLOW_HTTP and others that obstore reads.

Each file is transferred by a process of its own, so that no response can end this one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from onceward.archive.transfer import Order, Outcome, make_store
from onceward.errors import ArchiveUnavailable, ConfigurationError

REQUEST_SECONDS: Final = 120
MAX_RETRIES: Final = 5
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_ENDPOINTS: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""The variables that obstore takes an endpoint from."""


class ObjectStore:
    """A bucket, or a prefix in it."""

    def __init__(self, bucket: str, prefix: str, environment: Mapping[str, str]) -> None:
        self.location = f"s3://{bucket}/{prefix}".rstrip("/")
        allow_http = environment.get("AWS_ALLOW_HTTP", "").lower() in _TRUE
        self._at = _endpoint(environment, allow_http=allow_http)
        self._order = Order(
            bucket=bucket,
            prefix=prefix,
            location=self.location,
            at=self._at,
            allow_http=allow_http,
            request_seconds=REQUEST_SECONDS,
            max_retries=MAX_RETRIES,
            path="",
            local="",
        )
        try:
            make_store(self._order)
        except Exception as error:
            # Its text may quote a value of the environment.
            raise ConfigurationError(
                f"archive: obstore refuses the options of {self.location} "
                f"({type(error).__name__}). Check the AWS_ variables of the environment"
            ) from error

    def check(self) -> None:
        """Do nothing: a store that is down at start may be up when it is needed."""

    async def put(self, path: str, source: Path) -> None:
        """Upload a file under a new name, in one request. Never replace a file."""
        await self._transfer(replace(self._order, path=path, local=str(source)))

    async def get(self, path: str, target: Path, max_bytes: int) -> None:
        """Download a file.

        Raise ArchiveDamaged if it is missing or larger than `max_bytes`, and OSError if the target
        cannot be written.
        """
        order = replace(self._order, path=path, local=str(target), max_bytes=max_bytes)
        await self._transfer(order)

    async def _transfer(self, order: Order) -> None:
        process = await self._start(order)
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            outcome = msgspec.json.decode(output.rpartition(b"\n")[2], type=Outcome)
        except msgspec.DecodeError as error:
            raise ArchiveUnavailable(
                f"{self.location} at {self._at}: the process of the transfer ended with "
                f"{process.returncode}, perhaps without memory. Check what answers at AWS_ENDPOINT"
            ) from error
        if outcome.error is not None:
            raise outcome.error

    async def _start(self, order: Order) -> Process:
        arguments = ("-P", "-m", "onceward.archive.transfer", msgspec.json.encode(order).decode())
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=DEVNULL,  # texts of servers
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError as error:
            raise ArchiveUnavailable(
                f"{self.location}: no process can be started for the transfer: {error.strerror}"
            ) from error


def _endpoint(environment: Mapping[str, str], *, allow_http: bool) -> str:
    """Return the host of the object store, without credentials.

    Raise ConfigurationError if its endpoint has no TLS and that is not allowed.
    """
    for name in _ENDPOINTS:
        if not (url := environment.get(name)):
            continue
        if url.lower().startswith("http://") and not allow_http:
            raise ConfigurationError(
                f"archive: {name} is an http:// URL, so that payloads would be sent without TLS. "
                "Write https://, or set AWS_ALLOW_HTTP=true for a network that you trust"
            )
        return urlsplit(url).netloc.rpartition("@")[2] or name
    return "AWS"
