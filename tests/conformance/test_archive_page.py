"""docs/archive.md: its queries run on files of the archive."""

import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest

from onceward.archive.rows import COLUMNS
from onceward.ports import Store
from support.database import RawDatabase
from tests.archiving import TIME, archived, in_folder, record_at
from tests.factories import arrival

PAGE = (Path(__file__).parents[2] / "docs" / "archive.md").read_text()
SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
async def path(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Archive three events in the current folder; return the path of their file."""
    monkeypatch.chdir(tmp_path)
    body = b'{"amount": 7, "data": {"object": {"id": "in_1"}}}'
    await record_at(
        store,
        raw_db,
        arrival("evt_1", body=body, reference="cus_42"),
        arrival("evt_2", body=body),
        arrival("evt_3", body=b"\xff", source="ingest", type="order.made"),
    )
    (file,) = await archived(store, in_folder(tmp_path))
    return file.path


async def test_the_queries_of_the_page_run_in_duckdb(path: str) -> None:
    totals, objects, erasure = SQL.findall(PAGE)
    rows = duckdb.execute(totals.replace("'succeeded'", "'pending'")).fetchall()
    assert rows == [("stripe", "invoice.paid", 2, 98), ("ingest", "order.made", 1, 1)]
    assert duckdb.execute(objects).fetchall() == [("evt_1", "in_1"), ("evt_2", "in_1")]
    named = re.search(r"payloads/\S+9f3c01aa\.parquet", erasure)
    assert named is not None
    duckdb.execute(erasure.replace(named[0], path))
    erased = "SELECT event_id FROM read_parquet('payloads/*/*-erased.parquet') ORDER BY id"
    assert duckdb.execute(erased).fetchall() == [("evt_2",), ("evt_3",)]


async def test_the_query_of_the_page_runs_in_pandas(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = PYTHON.findall(PAGE)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - a block of our own page
    assert names["amounts"].sum() == 14
    assert list(names["events"].columns) == list(COLUMNS)
    assert "stripe    2" in capsys.readouterr().out


async def test_the_columns_of_the_page_are_those_of_a_file(path: str) -> None:
    table = PAGE.partition("| column | type |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", " ".join(cells)) == list(COLUMNS)
    table = pyarrow.parquet.read_table(path)
    assert table.column_names == list(COLUMNS)
    assert table["received_at"].to_pylist() == [TIME] * 3
    assert str(table.schema.field("received_at").type) == "timestamp[us, tz=UTC]"
    assert str(table.schema.field("body").type) == "binary"
    metadata = pyarrow.parquet.ParquetFile(path).metadata
    assert metadata.row_group(0).column(13).compression == "ZSTD"
