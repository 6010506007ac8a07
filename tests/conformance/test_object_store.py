"""The archive in an object store: a real S3 server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.archive import object_store
from onceward.archive.location import make_archive
from onceward.archive.parquet_archive import ParquetArchive
from onceward.errors import ArchiveDamaged, ArchiveUnavailable, ConfigurationError
from onceward.model.archive import ArchiveQuery
from onceward.operate.archiving import archive_week
from onceward.operate.restoring import restore_week
from onceward.ports import Store
from onceward.runtime.failpoints import Failpoints
from support.database import RawDatabase
from support.object_server import BUCKET, KEY, SECRET, ObjectServer
from support.postgres import free_port
from tests.archiving import WEEK, archived, drop_payloads, record_at, rows_of
from tests.factories import ACT, arrival, arrivals

PREFIX = "a/b"


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


@pytest.fixture
def environment(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "MAX_RETRIES", 1)
    return object_server.environment


@pytest.fixture
def archive(environment: dict[str, str]) -> ParquetArchive:
    return make_archive(f"s3://{BUCKET}/{PREFIX}", Failpoints())


async def test_a_week_goes_to_an_object_store_and_comes_back(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive
) -> None:
    body = bytes(range(256)) * 20_480
    await record_at(store, raw_db, *arrivals(3), arrival("large", body=body))
    before = await store.archive_page(WEEK, 0, limit=10, max_bytes=10**9)
    files = await archived(store, archive)
    assert await rows_of(archive, files) == before
    await archive.verify(files[0])
    drop_payloads(raw_db)
    assert (await restore_week(store, archive, WEEK, ACT)).payloads == 4
    assert await store.archive_page(WEEK, 0, limit=10, max_bytes=10**9) == before


async def test_a_file_is_never_replaced(archive: ParquetArchive, tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(b"first")
    (tmp_path / "second").write_bytes(b"second")
    await archive._files.put("payloads/x", tmp_path / "first")
    with pytest.raises(ArchiveUnavailable):
        await archive._files.put("payloads/x", tmp_path / "second")
    await archive._files.get("payloads/x", tmp_path / "copy", 100)
    assert (tmp_path / "copy").read_bytes() == b"first"


async def test_a_start_up_hook_may_print_in_the_process_of_a_transfer(
    archive: ParquetArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello', end='')")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "file").write_bytes(b"content")
    await archive._files.put("payloads/printed", tmp_path / "file")
    await archive._files.get("payloads/printed", tmp_path / "copy", 100)
    assert (tmp_path / "copy").read_bytes() == b"content"


async def test_a_damaged_truncated_or_missing_object_is_named(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive, object_server: ObjectServer
) -> None:
    await record_at(store, raw_db, *arrivals(3))
    (file,) = await archived(store, archive)
    path = f"{PREFIX}/{file.path}"
    content = object_server.content(path)
    object_server.replace(path, content[::-1])
    with pytest.raises(ArchiveDamaged, match=rf"s3://{BUCKET}/{path}: its SHA-256"):
        await archive.verify(file)
    object_server.replace(path, content[:-9])
    with pytest.raises(ArchiveDamaged, match=r"bytes instead of"):
        await archive.verify(file)
    object_server.delete(path)
    with pytest.raises(ArchiveDamaged, match="it is missing"):
        await archive.verify(file)


async def test_a_store_that_is_down_keeps_the_payloads_where_they_are(
    store: Store, raw_db: RawDatabase, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_at(store, raw_db, *arrivals(3))
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    archive = make_archive(f"s3://{BUCKET}/{PREFIX}", Failpoints())
    with pytest.raises(ArchiveUnavailable, match="Check AWS_ENDPOINT"):
        await archive_week(store, archive, WEEK)
    assert await store.archives(ArchiveQuery()) == []
    assert await store.has_unarchived(WEEK)


async def test_a_store_that_hangs_ends_the_run_and_not_the_event_loop(
    store: Store,
    raw_db: RawDatabase,
    environment: dict[str, str],
    object_server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_store, "REQUEST_SECONDS", 1)
    await record_at(store, raw_db, *arrivals(3))
    archive = make_archive(f"s3://{BUCKET}/{PREFIX}", Failpoints())
    object_server.freeze()
    try:
        run = asyncio.create_task(archive_week(store, archive, WEEK))
        ticks = 0
        while not run.done():
            ticks += 1
            await asyncio.sleep(0.01)
        with pytest.raises(ArchiveUnavailable):
            await run
    finally:
        object_server.thaw()
    assert ticks > 20
    assert [file.rows for file in await archived(store, archive)] == [3]


async def test_wrong_credentials_are_reported_without_them(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    archive = make_archive(f"s3://{BUCKET}/{PREFIX}", Failpoints())
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(ArchiveUnavailable) as raised:
        await archive._files.put("x", tmp_path / "file")
    text = str(raised.value)
    endpoint = environment["AWS_ENDPOINT"].removeprefix("http://")
    assert text == (
        f"s3://{BUCKET}/{PREFIX} at {endpoint} (HTTP 403): the secret of the access key is wrong. "
        "Check AWS_SECRET_ACCESS_KEY"
    )
    assert raised.value.__cause__ is None
    assert not [each for each in (KEY, SECRET, "not-the-secret") if each in text]


async def test_a_bucket_that_does_not_exist_is_no_missing_file(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive, environment: dict[str, str]
) -> None:
    await record_at(store, raw_db, *arrivals(3))
    (file,) = await archived(store, archive)
    wrong = make_archive(f"s3://no-such-bucket/{PREFIX}", Failpoints())
    endpoint = environment["AWS_ENDPOINT"].removeprefix("http://")
    with pytest.raises(
        ArchiveUnavailable,
        match=rf"s3://no-such-bucket/a/b at {endpoint} \(HTTP 404\): the bucket does not exist "
        r"there\. Correct its name in archive, or create it",
    ):
        await wrong.verify(file)
    with pytest.raises(ArchiveUnavailable, match=r"or no bucket has this name\. Check the name"):
        await wrong._files.put("x", Path(__file__))


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_without_tls_is_refused_at_start(name: str) -> None:
    options = {name: "http://user:word@minio.internal:9000"}
    with pytest.raises(ConfigurationError) as raised:
        make_archive("s3://backups/shop", Failpoints(), options)
    assert str(raised.value) == (
        f"archive: {name} is an http:// URL, so that payloads would be sent without TLS. Write "
        "https://, or set AWS_ALLOW_HTTP=true for a network that you trust"
    )
    archive = make_archive("s3://backups/shop", Failpoints(), {**options, "AWS_ALLOW_HTTP": "true"})
    assert archive._files._at == "minio.internal:9000"  # type: ignore[attr-defined] # of an S3 store
