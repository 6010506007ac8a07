"""Statements are found by name, each in the form that its dialect needs."""

import re
from importlib.resources import files

import pytest

from onceward.store.queries import Queries

DIALECTS = ("postgres", "sqlite")
MARKER = re.compile(r"^ *-- (if \w+|end)$", re.MULTILINE)
FRAGMENT_MARKER = re.compile(r"^ *-- (?:use|fragment:) \w+$", re.MULTILINE)


@pytest.mark.parametrize(
    ("dialect", "table", "clock"),
    [("postgres", "onceward.audit", "clock_timestamp()"), ("sqlite", "onceward_audit", ":now")],
)
def test_a_shared_statement_names_tables_and_the_clock_as_its_dialect_does(
    dialect: str, table: str, clock: str
) -> None:
    text = Queries(dialect).one("add_audit_entry").text
    assert f"INSERT INTO {table} (at," in text
    assert f"VALUES ({clock}, :actor" in text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_block_belongs_to_a_statement_only_under_its_condition(dialect: str) -> None:
    queries = Queries(dialect)
    assert queries.one("audit_page").names == {"limit"}
    assert queries.one("audit_page", "after").names == {"limit", "after"}
    assert queries.one("audit_page", "after", "event_id").names == {"limit", "after", "event_id"}
    assert queries.one("audit_page", "reference").names == {"limit"}, "no block has this condition"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_condition_may_have_several_blocks(dialect: str) -> None:
    assert Queries(dialect).one("deliveries_page", "after").text.count("id < :after") == 2


def test_a_block_may_hold_whole_statements() -> None:
    queries = Queries("sqlite")
    assert len(queries("record_new", "duplicate_body")) == len(queries("record_new")) + 3


@pytest.mark.parametrize("package", ["store", "store.postgres", "store.sqlite"])
def test_every_block_is_closed_before_the_next_one_opens(package: str) -> None:
    for file in files(f"onceward.{package}").joinpath("sql").iterdir():
        markers = [marker.split()[0] for marker in MARKER.findall(file.read_text())]
        assert markers == ["if", "end"] * (len(markers) // 2), file


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_marker_is_left_in_a_statement(dialect: str) -> None:
    queries = Queries(dialect)
    for name in queries._texts:
        for conditions in ((), ("after", "duplicate_body", "status")):
            text = "".join(statement.text for statement in queries(name, *conditions))
            assert not MARKER.search(text), name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_unknown_statement_is_a_key_error(dialect: str) -> None:
    with pytest.raises(KeyError, match="no_such_statement"):
        Queries(dialect).one("no_such_statement")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_state_of_an_event_is_written_once(dialect: str) -> None:
    folder = files(f"onceward.store.{dialect}").joinpath("sql")
    texts = [file.read_text() for file in folder.iterdir()]
    assert sum(text.count("THEN 'processing'") for text in texts) == 1
    for name in ("events_page", "archive_page"):
        assert Queries(dialect).one(name).text.count("THEN 'processing'") == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_fragment_is_left_out_of_or_after_a_statement(dialect: str) -> None:
    for name, text in Queries(dialect)._texts.items():
        assert not FRAGMENT_MARKER.search(text), name
