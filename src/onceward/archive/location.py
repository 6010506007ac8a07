"""The setting `archive`: where the files are."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from onceward.archive.folder import Folder
from onceward.archive.object_store import ObjectStore
from onceward.archive.parquet_archive import ParquetArchive
from onceward.errors import ConfigurationError
from onceward.runtime.failpoints import Failpoints

_EXTRA: Final = ("duckdb", "obstore")
_FORMS: Final = "write s3://bucket/prefix or file:///folder"


def make_archive(
    url: str, failpoints: Failpoints, environment: Mapping[str, str] | None = None
) -> ParquetArchive:
    """Return the archive at a URL. Raise ConfigurationError if it cannot work."""
    files = _files(url, os.environ if environment is None else environment)
    files.check()
    return ParquetArchive(files, failpoints)


def _files(url: str, environment: Mapping[str, str]) -> Folder | ObjectStore:
    parts = urlsplit(url)
    # A user, a query or a fragment may be a secret, so that the URL is not repeated.
    if not parts.scheme and not parts.query and not parts.fragment and "@" not in url:
        path = Path(url).absolute().as_uri()
        raise ConfigurationError(f"archive is a path without a scheme; write {path}")
    if parts.scheme not in ("file", "s3"):
        raise ConfigurationError(f"archive has no known scheme; {_FORMS}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            "archive takes no user, password or options; the AWS_ variables of the environment "
            "set them"
        )
    if missing := [name for name in _EXTRA if importlib.util.find_spec(name) is None]:
        raise ConfigurationError(
            f"archive needs {' and '.join(missing)}: pip install 'onceward[archive]'"
        )
    if parts.scheme == "file":
        return Folder(_folder(parts.netloc, unquote(parts.path)))
    prefix = unquote(parts.path).strip("/")
    if not parts.netloc or ".." in PurePosixPath(prefix).parts:
        raise ConfigurationError(f"archive names no bucket, or an invalid prefix; {_FORMS}")
    return ObjectStore(parts.netloc, prefix, environment)


def _folder(host: str, path: str) -> Path:
    if host or not path.startswith("/") or path == "/":
        raise ConfigurationError(
            f"archive: file://{host}{path} is not the absolute path of a folder; write "
            "file:///folder, with three slashes"
        )
    return Path(path)
