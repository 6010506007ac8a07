"""Files of the archive in an S3-compatible object store, by obstore.

The options come from the usual environment variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT, AWS_ALLOW_HTTP and others that obstore reads.

Requests are awaited and not made in threads: a process that stops waits for its threads, and would
wait for a store that hangs.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import urlsplit

from onceward.errors import ArchiveDamaged, ArchiveUnavailable, ConfigurationError

CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 120
RETRY_SECONDS: Final = 60
MAX_RETRIES: Final = 5
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_ENDPOINTS: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""The variables that obstore takes an endpoint from."""
_EXPIRED: Final = "the session token is not valid any more. Renew AWS_SESSION_TOKEN"
_REGION: Final = "the bucket is in another region. Set AWS_REGION to the region of the bucket"
_REASONS: Final = {
    "NoSuchBucket": (
        "the bucket does not exist there. Correct its name in archive, or create it; for a store "
        "other than AWS, check AWS_ENDPOINT"
    ),
    "AccessDenied": (
        "access is refused: the key may not use the bucket, or no bucket has this name. Check the "
        "name in archive, and that the policy of the key allows s3:PutObject and s3:GetObject "
        "below the prefix"
    ),
    "InvalidAccessKeyId": "the access key is unknown there. Check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret of the access key is wrong. Check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": _EXPIRED,
    "InvalidToken": _EXPIRED,
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
}
"""The cause and the remedy, by the error code of S3."""
_DENIED: Final = (
    "access is refused. Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy"
)
_REACH: Final = (
    "it cannot be reached or used. Check AWS_ENDPOINT, AWS_REGION, the bucket's name and the "
    "network"
)


class ObjectStore:
    """A bucket, or a prefix in it."""

    def __init__(self, bucket: str, prefix: str, environment: Mapping[str, str]) -> None:
        from obstore.store import S3Store  # noqa: PLC0415 - an extra

        self.location = f"s3://{bucket}/{prefix}".rstrip("/")
        # obstore reads the environment, but not for what `client_options` replaces.
        allow_http = environment.get("AWS_ALLOW_HTTP", "").lower() in _TRUE
        self._at = _endpoint(environment, allow_http=allow_http)
        try:
            self._store = S3Store(
                bucket,
                prefix=prefix or None,
                client_options={
                    "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                    "timeout": timedelta(seconds=REQUEST_SECONDS),
                    "allow_http": allow_http,
                },
                retry_config={
                    "max_retries": MAX_RETRIES,
                    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                },
            )
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
        import obstore  # noqa: PLC0415 - an extra

        with self._translated():
            try:
                await obstore.put_async(
                    self._store, path, source, mode="create", use_multipart=False
                )
            except (NotImplementedError, obstore.exceptions.NotSupportedError):
                # The random part of the name is enough where the store cannot refuse a taken one.
                await obstore.put_async(self._store, path, source, use_multipart=False)

    async def get(self, path: str, target: Path, max_bytes: int) -> None:
        """Download a file.

        Raise ArchiveDamaged if it is missing or larger than `max_bytes`, and OSError if the target
        cannot be written.
        """
        size = 0
        with _create(target) as writer:
            async with aclosing(self._chunks(path)) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > max_bytes:
                        raise ArchiveDamaged(f"it has more than {max_bytes} bytes")
                    await asyncio.to_thread(writer.write, chunk)

    async def _chunks(self, path: str) -> AsyncGenerator[memoryview, None]:
        import obstore  # noqa: PLC0415 - an extra

        with self._translated():
            try:
                async for chunk in (await obstore.get_async(self._store, path)).stream():
                    yield memoryview(chunk)
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                raise ArchiveDamaged("it is missing") from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of obstore as ArchiveUnavailable, without the texts of servers."""
        import obstore  # noqa: PLC0415 - an extra

        denied = (
            obstore.exceptions.PermissionDeniedError,
            obstore.exceptions.UnauthenticatedError,
        )
        try:
            yield
        except (obstore.exceptions.BaseError, OSError) as error:
            default = _DENIED if isinstance(error, denied) else _REACH
            reason = _REASONS.get(_code(error), default)
            raise ArchiveUnavailable(
                f"{self.location} at {self._at}{_status(error)}: {reason}"
            ) from None


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


def _code(error: Exception) -> str:
    """Return the error code of S3 in an error's text, or an empty text."""
    match = _CODE.search(str(error))
    return match[1] if match else ""


def _status(error: Exception) -> str:
    """Return the HTTP status in an error's text, if it has one. The rest may hold credentials."""
    match = _STATUS.search(str(error))
    return f" (HTTP {match[1]})" if match else f" ({type(error).__name__})"


def _create(target: Path) -> BinaryIO:
    """Create a file that only this user can read."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    return os.fdopen(descriptor, "wb")
