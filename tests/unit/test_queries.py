"""Statements are found by name, in the words of each dialect."""

import pytest

from onceward.store.queries import Queries


@pytest.mark.parametrize(
    ("dialect", "table", "clock"),
    [("postgres", "onceward.audit", "clock_timestamp()"), ("sqlite", "onceward_audit", ":now")],
)
def test_a_shared_statement_names_tables_and_the_clock_as_its_dialect_does(
    dialect: str, table: str, clock: str
) -> None:
    text = Queries(dialect).one("note_act").text
    assert f"INSERT INTO {table} (at," in text
    assert f"VALUES ({clock}, :actor" in text


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_an_unknown_statement_is_a_key_error(dialect: str) -> None:
    with pytest.raises(KeyError, match="no_such_statement"):
        Queries(dialect).one("no_such_statement")
