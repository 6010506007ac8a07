"""The setting `archive` is refused at start if it cannot work, by name and without secrets."""

import importlib.util
import os
from pathlib import Path

import pytest

from onceward import Inbox
from onceward.archive.location import make_archive
from onceward.errors import ConfigurationError
from onceward.runtime.failpoints import Failpoints
from tests.inprocess import receive_only

EXTRA = "archive needs duckdb and obstore: pip install 'onceward[archive]'"


def fault(url: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        make_archive(url, Failpoints(), {})
    return str(raised.value)


INVALID_LOCATIONS = [
    ("/srv/archive", "write file:///srv/archive"),
    ("gs://bucket", "no known scheme"),
    ("file://archive", "is not the absolute path of a folder"),
    ("file:archive", "is not the absolute path of a folder"),
    ("file:///", "is not the absolute path of a folder"),
    ("file:///there/is/no/such/folder", "does not exist"),
    ("s3://", "names no bucket"),
    ("s3:///prefix", "names no bucket"),
    ("s3://bucket/../other", "an invalid prefix"),
    ("s3://key:hunter2@bucket", "takes no user, password or options"),
    ("s3://bucket?secret=hunter2", "takes no user, password or options"),
]


def test_an_invalid_location_is_refused(subtests: pytest.Subtests) -> None:
    for url, reason in INVALID_LOCATIONS:
        with subtests.test(url=url):
            text = fault(url)
            assert text.startswith("archive")
            assert reason in text
            assert "hunter2" not in text


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a folder" in fault((tmp_path / "file").as_uri())


def test_a_folder_that_is_not_writable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests may run as root, for whom every folder is writable.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "is not writable for this user" in fault(tmp_path.as_uri())


def test_a_path_with_spaces_is_written_as_in_any_url(tmp_path: Path) -> None:
    folder = tmp_path / "old payloads"
    folder.mkdir()
    assert make_archive(folder.as_uri(), Failpoints(), {}).location == folder.as_uri()


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert fault(tmp_path.as_uri()) == EXTRA


async def test_a_process_with_an_archive_that_cannot_work_does_not_start(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="no/such/folder does not exist"):
        async with receive_only(Inbox(), sqlite_url, archive="file:///no/such/folder"):
            pass
