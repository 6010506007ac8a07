"""Files of the archive that somebody replaced, and stores that hang or never end."""

import asyncio
import hashlib
import os
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from onceward.archive.location import make_archive
from onceward.archive.object_store import REQUEST_SECONDS
from onceward.archive.parquet_archive import ParquetArchive
from onceward.errors import ArchiveDamaged, ArchiveUnavailable
from onceward.model.archive import ArchivedEvent, ArchiveFile
from onceward.model.events import ProcessingState
from onceward.runtime.failpoints import Failpoints
from tests.archiving import TIME, WEEK, in_folder

BODY = b'{"amount": 7}'
MEBIBYTE = b"\0" * 1024 * 1024
SECONDS = 30.0
"""Time for a call that must not wait for a hostile file or store."""


def archived_event(body: bytes = BODY) -> ArchivedEvent:
    return ArchivedEvent(
        id=1,
        source="stripe",
        event_id="evt_1",
        type="invoice.paid",
        reference=None,
        received_at=TIME,
        body_sha256=bytes(32),
        deliveries=1,
        conflicts=0,
        routed=True,
        processing_state=ProcessingState.SUCCEEDED,
        processed_at=TIME,
        headers=b"{}",
        body=body,
    )


async def write(archive: ParquetArchive, body: bytes = BODY) -> ArchiveFile:
    async def pages() -> AsyncIterator[list[ArchivedEvent]]:
        yield [archived_event(body)]

    return await archive.write(WEEK, 0, pages())


def enlarge(path: Path) -> None:
    path.unlink()
    with path.open("wb") as file:
        file.truncate(256 * len(MEBIBYTE))


def replace_with(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


@pytest.mark.parametrize(
    ("replace", "fault"),
    [
        (replace_with(Path.mkdir), "it is not a regular file"),
        (replace_with(os.mkfifo), "it is not a regular file"),
        (replace_with(lambda path: path.symlink_to("/dev/zero")), "it is not a regular file"),
        (replace_with(lambda path: path.symlink_to(path.name)), "it cannot be read"),
        (replace_with(lambda path: path.symlink_to("nowhere")), "it is missing"),
        (enlarge, r"it has more than \d+ bytes"),
    ],
    ids=["folder", "pipe", "device", "loop", "dangling", "larger"],
)
async def test_a_file_that_was_replaced_is_damaged_and_delays_nothing(
    tmp_path: Path, replace: Callable[[Path], None], fault: str
) -> None:
    """The other files of its week can then be used."""
    archive = in_folder(tmp_path)
    file = await write(archive)
    replace(tmp_path / file.path)
    with pytest.raises(ArchiveDamaged, match=fault):
        await asyncio.wait_for(archive.verify(file), SECONDS)


def repeated(value: object, kind: pa.DataType) -> pa.Array:
    """Return a column of 600 rows that share one value, which takes its room once in a file."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * 600, pa.int32()), pa.array([value], kind))


BOMBS = {
    "bodies": ("body", repeated(MEBIBYTE, pa.binary())),
    "texts": ("event_id", repeated("a" * len(MEBIBYTE), pa.string())),
    "headers": ("headers", repeated(MEBIBYTE, pa.binary())),
    "rows": ("body", repeated(b"", pa.binary())),
}
ODD_VALUES = {
    "no-id": ("id", pa.array([None], pa.int64())),
    "no-time": ("received_at", pa.array([None], pa.timestamp("us", "UTC"))),
    "no-body": ("body", pa.array([None], pa.binary())),
    "a-time-that-is-none": ("received_at", pa.array([-(2**62)], pa.timestamp("us", "UTC"))),
    "a-number-that-is-a-text": ("deliveries", pa.array(["1"])),
    "a-body-that-is-a-text": ("body", pa.array(["{}"])),
}


@pytest.mark.parametrize(
    ("column", "values", "fault"),
    [
        *((*case, "it has more in it than was archived") for case in BOMBS.values()),
        *((*case, r"it is not an archive file \(\w+\)") for case in ODD_VALUES.values()),
    ],
    ids=[*BOMBS, *ODD_VALUES],
)
async def test_a_file_whose_record_was_changed_with_it_is_damaged(
    tmp_path: Path, column: str, values: pa.Array, fault: str
) -> None:
    """It takes no more room than the events that were archived, and nothing of it is used."""
    archive = in_folder(tmp_path)
    file = await write(archive)
    path = tmp_path / file.path
    table = pq.read_table(path)
    table = pa.concat_tables([table] * len(values))
    table = table.set_column(table.schema.get_field_index(column), column, values)
    pq.write_table(table, path, compression="zstd")
    content = path.read_bytes()
    changed = replace(file, file_bytes=len(content), sha256=hashlib.sha256(content).digest())
    with pytest.raises(ArchiveDamaged, match=f"{file.path}: {fault}. Restore the file"):
        [page async for page in archive.read(changed)]


async def test_a_temporary_folder_cannot_replace_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB reads `body=1` in a path as the value of a column, by default."""
    (tmp_path / "body=1").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "body=1"))
    archive = in_folder(tmp_path)
    file = await write(archive)
    assert [page async for page in archive.read(file)] == [[archived_event()]]


async def test_one_large_body_does_not_stop_the_archive(tmp_path: Path) -> None:
    """Nothing after its week would be archived or dropped either."""
    archive = in_folder(tmp_path)
    file = await write(archive, MEBIBYTE * 100)
    await archive.verify(file)


def s3_archive(monkeypatch: pytest.MonkeyPatch, server: socket.socket) -> ParquetArchive:
    """Return an archive in an object store on loopback."""
    host, port = server.getsockname()
    variables = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return make_archive("s3://bucket/prefix", Failpoints())


async def test_an_object_that_never_ends_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await write(in_folder(tmp_path))

    async def send_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b'HTTP/1.1 200 OK\r\nETag: "x"\r\nLast-Modified: Wed, 07 Jan 2026 11:30:00 GMT\r\n'
            b"Content-Length: %d\r\n\r\n" % 2**40
        )
        with suppress(ConnectionError):
            for _ in range(1_000):
                writer.write(MEBIBYTE)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(send_for_ever, "127.0.0.1", 0) as server:
        archive = s3_archive(monkeypatch, server.sockets[0])
        with pytest.raises(ArchiveDamaged, match=r"it has more than \d+ bytes"):
            await asyncio.wait_for(archive.verify(file), SECONDS)


@pytest.mark.parametrize("is_upload", [False, True], ids=["download", "upload"])
@pytest.mark.parametrize("length", [2**40, 2**33], ids=["allocated", "collected"])
async def test_an_error_that_never_ends_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, *, is_upload: bool
) -> None:
    """The library collects the body of an error: the allocation of a terabyte ends its process."""
    file = await write(in_folder(tmp_path))

    async def refuse_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sent = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(sent[1]) if sent else 0)
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % length)
        with suppress(ConnectionError):
            while True:
                writer.write(MEBIBYTE)
                await writer.drain()

    async with await asyncio.start_server(refuse_for_ever, "127.0.0.1", 0) as server:
        archive = s3_archive(monkeypatch, server.sockets[0])
        with pytest.raises(ArchiveUnavailable, match="the process of the transfer ended with -6"):
            await asyncio.wait_for(write(archive) if is_upload else archive.verify(file), SECONDS)


def test_a_process_that_stops_does_not_wait_for_a_store_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stop_while_waiting(server: socket.socket) -> tuple[socket.socket, float]:
        task = asyncio.create_task(write(s3_archive(monkeypatch, server)))
        connection, _ = await asyncio.get_running_loop().sock_accept(server)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return connection, time.monotonic()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        # The end of an event loop waits for its threads.
        connection, cancelled_at = asyncio.run(stop_while_waiting(server))
        with connection:
            assert time.monotonic() - cancelled_at < REQUEST_SECONDS / 4
