"""Parquet files on the local disk, written and read by DuckDB. Everything here blocks."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceward.archive import rows
from onceward.errors import ArchiveDamaged, ArchiveUnavailable
from onceward.model.archive import ArchivedEvent, EventKey

READ_ROWS: Final = 256
MAX_TEXT_BYTES: Final = 256 * 1024
"""The most that a row may have beside its body. DuckDB reads 2,048 rows at a time."""
MIN_MEMORY_BYTES: Final = 512 * 1000 * 1000
MEMORY_PER_BYTE: Final = 6
"""The memory that DuckDB may use for each byte of the longest row. It needs about 4."""
_MIN_OBJECT_BYTES: Final = 1024 * 1024

_TEXT: Final = {"TIMESTAMPTZ": "BIGINT", "BLOB": "VARCHAR"}
"""How the types that JSON lacks are written in a line."""
_DECODE: Final = {"TIMESTAMPTZ": "make_timestamptz({0})", "BLOB": "from_base64({0})"}
_FETCH: Final = {"TIMESTAMPTZ": "epoch_us({0})"}
_LENGTH: Final = {"VARCHAR": "strlen({0})", "BLOB": "octet_length({0})"}
_TEXTS: Final = " + ".join(
    f"coalesce({_LENGTH[kind].format(name)}, 0)"
    for name, kind in rows.COLUMNS.items()
    if kind in _LENGTH and name != "body"
)
_SIZES: Final = f"count(*), coalesce(sum(octet_length(body)), 0), coalesce(max({_TEXTS}), 0)"


class Limits(NamedTuple):
    """The most rows and bytes that a file may have, by its record.

    A large body has a file of its own, so that `body_bytes` bounds the longest row.
    """

    rows: int
    body_bytes: int


def write(lines: Path, target: Path, longest_line: int) -> None:
    """Write the rows of a file of lines as Parquet. Raise ArchiveUnavailable."""
    import duckdb  # noqa: PLC0415 - an extra

    columns = ", ".join(
        f"'{name}': '{_TEXT.get(kind, kind)}'" for name, kind in rows.COLUMNS.items()
    )
    select = ", ".join(
        f"{_DECODE.get(kind, '{0}').format(name)} AS {name}" for name, kind in rows.COLUMNS.items()
    )
    size = max(_MIN_OBJECT_BYTES, longest_line + 1)
    # The names are our own, and the paths are quoted. A folder `body=1` above the file would be a
    # column, unless hive_partitioning is off.
    statement = (
        f"COPY (SELECT {select} FROM read_json({_quoted(lines)}, format = 'newline_delimited', "  # noqa: S608
        f"columns = {{{columns}}}, maximum_object_size = {size}, hive_partitioning = false)) "
        f"TO {_quoted(target)} (FORMAT parquet, COMPRESSION zstd)"
    )
    try:
        with _connection(target.parent, longest_line) as connection:
            connection.execute(statement)
    except duckdb.Error as error:
        # DuckDB's text may quote the content of the file.
        raise ArchiveUnavailable(
            f"DuckDB cannot write to the temporary folder {target.parent.parent} "
            f"({type(error).__name__}). Free some space there, or set TMPDIR to a folder on "
            "another disk"
        ) from error


def read(
    path: Path, limits: Limits, key: EventKey | None = None
) -> Generator[list[ArchivedEvent], None, None]:
    """Yield the rows of a file in its order, or those with a key. Raise ArchiveDamaged."""
    import duckdb  # noqa: PLC0415 - an extra

    columns = ", ".join(_FETCH.get(kind, "{0}").format(name) for name, kind in rows.COLUMNS.items())
    # The names are our own.
    source = "FROM read_parquet(?, hive_partitioning = false)"
    source += "" if key is None else " WHERE source = ? AND event_id = ?"
    values = [str(path), *(key or ())]
    try:
        with _connection(path.parent, limits.body_bytes) as connection:
            _check_sizes(connection.execute(f"SELECT {_SIZES} {source}", values), limits)
            cursor = connection.execute(f"SELECT {columns} {source}", values)
            while chunk := cursor.fetchmany(READ_ROWS):
                yield [rows.from_columns(values) for values in chunk]
    except (duckdb.Error, ValueError, TypeError, OverflowError) as error:
        # DuckDB's text may quote the content of the file.
        raise ArchiveDamaged(f"it is not an archive file ({type(error).__name__})") from error


def _check_sizes(cursor: Any, limits: Limits) -> None:
    """Raise ArchiveDamaged if the rows are larger than those that were archived.

    A small file may hold one large value in thousands of rows. Counted, it takes no room.
    """
    count, body_bytes, longest_text = cursor.fetchone()
    if count > limits.rows or body_bytes > limits.body_bytes or longest_text > MAX_TEXT_BYTES:
        raise ArchiveDamaged("it has more in it than was archived")


def digest(path: Path, limits: Limits) -> rows.Digest:
    """Return the digest of a file's rows. Raise ArchiveDamaged."""
    found = rows.Digest()
    for page in read(path, limits):
        for event in page:
            found.add(event, rows.line(event))
    return found


@contextmanager
def _connection(folder: Path, longest_row: int) -> Iterator[Any]:
    """Open DuckDB without files of its own, threads or extensions from elsewhere."""
    import duckdb  # noqa: PLC0415 - an extra

    config: dict[str, Any] = {
        "threads": 1,
        "memory_limit": f"{max(MIN_MEMORY_BYTES, MEMORY_PER_BYTE * longest_row)}B",
        "temp_directory": str(folder),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "preserve_insertion_order": True,
    }
    connection = duckdb.connect(":memory:", config=config)
    try:
        yield connection
    finally:
        connection.close()


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
