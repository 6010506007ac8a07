"""One transfer to or from an object store, in a process of its own.

obstore allocates what an error response says it has in its body, and collects what comes. That ends
this process, and not the one that receives. `ObjectStore` starts it, with an `Order` as argument.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from onceward.errors import ArchiveDamaged, ArchiveUnavailable

CONNECT_SECONDS: Final = 5
RETRY_SECONDS: Final = 60
MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""The memory of the process, beside the file that it uploads."""
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
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


class Order(msgspec.Struct, kw_only=True, frozen=True):
    """A transfer to carry out. Credentials come from the environment."""

    bucket: str
    prefix: str
    location: str
    at: str
    """The host of the object store, for errors."""
    allow_http: bool
    request_seconds: float
    max_retries: int
    path: str
    local: str
    max_bytes: int | None = None
    """The largest file to download; None uploads."""


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """How a transfer ended: the last line that its process prints."""

    is_done: bool = False
    damaged: str = ""
    unavailable: str = ""
    errno: int = 0
    """Of the local file."""

    @property
    def error(self) -> ArchiveDamaged | ArchiveUnavailable | OSError | None:
        """The error to raise; None if it succeeded."""
        if self.is_done:
            return None
        if self.damaged:
            return ArchiveDamaged(self.damaged)
        if self.unavailable:
            return ArchiveUnavailable(self.unavailable)
        return OSError(self.errno, os.strerror(self.errno))


def make_store(order: Order) -> Any:
    """Return the bucket. Raise what obstore raises for options that it refuses."""
    from obstore.store import S3Store  # noqa: PLC0415 - an extra

    # obstore reads the environment, but not for what `client_options` replaces.
    return S3Store(
        order.bucket,
        prefix=order.prefix or None,
        client_options={
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=order.request_seconds),
            "allow_http": order.allow_http,
        },
        retry_config={
            "max_retries": order.max_retries,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        },
    )


class Transfer:
    """A file on its way."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._store = make_store(order)

    async def run(self) -> None:
        """Upload or download. Raise ArchiveDamaged, ArchiveUnavailable or OSError."""
        order = self._order
        if order.max_bytes is None:
            await self._put(order.path, Path(order.local))
        else:
            await self._get(order.path, Path(order.local), order.max_bytes)

    async def _put(self, path: str, source: Path) -> None:
        import obstore  # noqa: PLC0415 - an extra

        with self._translated():
            try:
                await obstore.put_async(
                    self._store, path, source, mode="create", use_multipart=False
                )
            except (NotImplementedError, obstore.exceptions.NotSupportedError):
                # The random part of the name is enough where the store cannot refuse a taken one.
                await obstore.put_async(self._store, path, source, use_multipart=False)

    async def _get(self, path: str, target: Path, max_bytes: int) -> None:
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
                f"{self._order.location} at {self._order.at}{_status(error)}: {reason}"
            ) from None


def main() -> None:
    """Carry out the order in the first argument, and print the outcome."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    size = Path(order.local).stat().st_size if order.max_bytes is None else 0
    limits = {resource.RLIMIT_DATA: MEMORY_BYTES + 2 * size, resource.RLIMIT_CORE: 0}
    for kind, limit in limits.items():
        with suppress(ValueError, OSError):  # a lower limit is set
            resource.setrlimit(kind, (limit, limit))
    outcome = msgspec.json.encode(_carry_out(order))
    sys.stdout.buffer.write(b"\n" + outcome)  # a start-up hook may have printed something
    sys.stdout.flush()
    os._exit(0)  # obstore's threads may panic while Python ends


def _carry_out(order: Order) -> Outcome:
    """Carry out an order."""
    try:
        asyncio.run(Transfer(order).run())
    except ArchiveDamaged as error:
        return Outcome(damaged=str(error))
    except ArchiveUnavailable as error:
        return Outcome(unavailable=str(error))
    except OSError as error:
        return Outcome(errno=error.errno or 0)
    return Outcome(is_done=True)


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


if __name__ == "__main__":
    main()
