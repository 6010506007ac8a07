"""The archive of payloads: each file is written, read back from where it is kept, and compared."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from onceward.archive import parquet, rows
from onceward.errors import ArchiveDamaged, ArchiveError, ArchiveUnavailable
from onceward.model.archive import ArchivedEvent, ArchiveFile, EventKey
from onceward.model.weeks import Week
from onceward.runtime.failpoints import Failpoints

_KEPT: Final = (
    "The payloads are still in the ledger, and the next run writes another file. Check the storage"
)
_RESTORE_COPY: Final = "Restore the file from a backup or another version of the object"
_NOT_DROPPED: Final = (
    f"Nothing was dropped. {_RESTORE_COPY}. If it is lost, delete its row from the table archives: "
    "what the ledger still has of it is then archived again"
)

_Pages = Iterator[list[ArchivedEvent]]


class Files(Protocol):
    """A place for files that are written once."""

    location: str

    def check(self) -> None:
        """Raise ConfigurationError if it cannot work."""

    async def put(self, path: str, source: Path) -> None:
        """Copy a local file to a new name, durably. Raise ArchiveUnavailable."""

    async def get(self, path: str, target: Path, max_bytes: int) -> None:
        """Copy a file to a new local one, of at most so many bytes.

        Raise ArchiveUnavailable, ArchiveDamaged, or OSError if the local one cannot be written.
        """


class ParquetArchive:
    """The port `PayloadArchive`. Its work is done in threads, on files in a temporary folder."""

    def __init__(self, files: Files, failpoints: Failpoints) -> None:
        self._files = files
        self._failpoints = failpoints
        self.location = files.location

    async def write(
        self, week: Week, part: int, pages: AsyncIterator[Sequence[ArchivedEvent]]
    ) -> ArchiveFile:
        """Write events to a new file; read it back and verify it."""
        with _scratch_folder() as folder:
            written = await _write_lines(folder / "lines", pages)
            local = folder / "part.parquet"
            await asyncio.to_thread(parquet.write, folder / "lines", local, written.longest_line)
            await asyncio.to_thread((folder / "lines").unlink)
            digest = written.digest
            path = _path(week, part, digest)
            await self._files.put(path, local)
            self._failpoints.reach("archive.written")
            file = ArchiveFile(
                week=week,
                part=part,
                path=path,
                rows=digest.rows,
                body_bytes=digest.body_bytes,
                file_bytes=local.stat().st_size,
                sha256=await asyncio.to_thread(_sha256, local),
                content_sha256=digest.content_sha256,
                first_event=digest.first_event,
                last_event=digest.last_event,
            )
            await self._compare(file, folder / "copy.parquet", _KEPT)
            self._failpoints.reach("archive.verified")
            return file

    async def verify(self, file: ArchiveFile) -> None:
        """Read a file and compare it with its record. Raise ArchiveDamaged if they differ."""
        with _scratch_folder() as folder:
            await self._compare(file, folder / "copy.parquet", _RESTORE_COPY)

    async def check(self, file: ArchiveFile) -> None:
        """Compare the bytes of a file with its record, before payloads are dropped because of it.

        Its rows were compared when it was written. Raise ArchiveDamaged if the bytes differ.
        """
        with _scratch_folder() as folder:
            await self._fetch(file, folder / "copy.parquet", _NOT_DROPPED)

    async def read(
        self, file: ArchiveFile, key: EventKey | None = None
    ) -> AsyncGenerator[list[ArchivedEvent], None]:
        """Yield the events of a file, or the one with this key, after comparing its hash."""
        with _scratch_folder() as folder:
            copy = folder / "copy.parquet"
            await self._fetch(file, copy, _RESTORE_COPY)
            pages = parquet.read(copy, _limits(file), key)
            try:
                while page := await self._next(file, pages):
                    yield page
            finally:
                await asyncio.to_thread(pages.close)

    async def _next(self, file: ArchiveFile, pages: _Pages) -> list[ArchivedEvent] | None:
        with self._named(file, _RESTORE_COPY):
            return await asyncio.to_thread(next, pages, None)

    async def _fetch(self, file: ArchiveFile, copy: Path, advice: str) -> None:
        """Copy a file from its place, and compare its bytes with the recorded hash."""
        with self._named(file, advice):
            await self._files.get(file.path, copy, file.file_bytes)
            await asyncio.to_thread(_check_bytes, file, copy)

    async def _compare(self, file: ArchiveFile, copy: Path, advice: str) -> None:
        await self._fetch(file, copy, advice)
        with self._named(file, advice):
            found = await asyncio.to_thread(parquet.digest, copy, _limits(file))
            if found.rows != file.rows:
                raise ArchiveDamaged(f"it has {found.rows} rows instead of {file.rows}")
            if found.content_sha256 != file.content_sha256:
                raise ArchiveDamaged("its rows are not those that were archived")

    @contextmanager
    def _named(self, file: ArchiveFile, advice: str) -> Iterator[None]:
        """Name the file in the errors about it, and what to do."""
        name = f"{self.location}/{file.path}"
        try:
            yield
        except ArchiveDamaged as error:
            raise ArchiveDamaged(f"The archived file {name}: {error}. {advice}.") from error
        except ArchiveUnavailable as error:
            raise ArchiveUnavailable(f"The archived file {name}: {error}.") from error


class _Lines:
    """The rows of a part, as a local file of lines."""

    def __init__(self) -> None:
        self.digest = rows.Digest()
        self.longest_line = 0

    def add(self, file: BinaryIO, page: Sequence[ArchivedEvent]) -> None:
        for event in page:
            text = rows.line(event)
            if event.id <= self.digest.last_event:
                raise ArchiveError(f"event {event.id} is not above the one before it")
            self.digest.add(event, text)
            self.longest_line = max(self.longest_line, len(text))
            file.write(text)


async def _write_lines(path: Path, pages: AsyncIterator[Sequence[ArchivedEvent]]) -> _Lines:
    lines = _Lines()
    with path.open("wb") as file:
        async for page in pages:
            await asyncio.to_thread(lines.add, file, page)
        await asyncio.to_thread(file.flush)
    if not lines.digest.rows:
        raise ArchiveError("A part of the archive has no events")
    return lines


def _path(week: Week, part: int, digest: rows.Digest) -> str:
    ids = f"{digest.first_event}-{digest.last_event}"
    return f"payloads/{week}/part-{part:05}-{ids}-{secrets.token_hex(4)}.parquet"


def _limits(file: ArchiveFile) -> parquet.Limits:
    return parquet.Limits(file.rows, file.body_bytes)


def _check_bytes(file: ArchiveFile, copy: Path) -> None:
    """Raise ArchiveDamaged if a copy is not the recorded file."""
    size = copy.stat().st_size
    if size != file.file_bytes:
        raise ArchiveDamaged(f"it has {size} bytes instead of {file.file_bytes}")
    if _sha256(copy) != file.sha256:
        raise ArchiveDamaged("its SHA-256 is not the recorded one")


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """Create a temporary folder that only this user can read.

    Raise ArchiveUnavailable if its disk is full or cannot be used.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="onceward-archive-") as name:
            yield Path(name)
    except OSError as error:
        raise ArchiveUnavailable(
            f"the temporary folder {tempfile.gettempdir()} cannot be used: {error.strerror}. Free "
            "some space there, or set TMPDIR to a folder on another disk"
        ) from error
