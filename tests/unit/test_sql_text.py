"""Named parameters are found in plain SQL, and the rest stays as it is."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.runtime.sql_text import _parse, parse
from tests.cpu_time import GROWTH, assert_linear

LONG = 2000


def parse_one(text: str) -> tuple[str, frozenset[str], str]:
    (statement,) = parse(text)
    return statement.pyformat.decode(), statement.names, statement.keyword


PARAMETERS: list[tuple[str, str, set[str]]] = [
    ("SELECT :a", "SELECT %(a)s", {"a"}),
    ("SELECT :a, :b2, :_c, :a", "SELECT %(a)s, %(b2)s, %(_c)s, %(a)s", {"a", "b2", "_c"}),
    ("SELECT(:a)", "SELECT(%(a)s)", {"a"}),
    ("SELECT :a::text", "SELECT %(a)s::text", {"a"}),
    ("SELECT x::text, y :: int", "SELECT x::text, y :: int", set()),
    ("SELECT ':a'", "SELECT ':a'", set()),
    ("SELECT 'it''s :a' || :b", "SELECT 'it''s :a' || %(b)s", {"b"}),
    ("SELECT 'back\\' || :b", "SELECT 'back\\' || %(b)s", {"b"}),
    ("SELECT E'it\\'s :a' || :b", "SELECT E'it\\'s :a' || %(b)s", {"b"}),
    ('SELECT ":a"', 'SELECT ":a"', set()),
    ('SELECT "say "":a""" || :b', 'SELECT "say "":a""" || %(b)s', {"b"}),
    ("SELECT $$:a$$ || :b", "SELECT $$:a$$ || %(b)s", {"b"}),
    ("SELECT $x$ $$ :a $y$ $x$", "SELECT $x$ $$ :a $y$ $x$", set()),
    ("SELECT price$x || :b", "SELECT price$x || %(b)s", {"b"}),
    ("SELECT 1 -- :a\n, :b", "SELECT 1 -- :a\n, %(b)s", {"b"}),
    ("SELECT 1 -- :a\r, :b", "SELECT 1 -- :a\r, %(b)s", {"b"}),
    ("SELECT 1 /* :a */ , :b", "SELECT 1 /* :a */ , %(b)s", {"b"}),
    ("SELECT 1 /* /* :a */ :a */ , :b", "SELECT 1 /* /* :a */ :a */ , %(b)s", {"b"}),
    ("SELECT 7 % 4", "SELECT 7 %% 4", set()),
    ("SELECT '%s %(a)s %%'", "SELECT '%%s %%(a)s %%%%'", set()),
    ("SELECT 1 -- 100%", "SELECT 1 -- 100%%", set()),
    ("SELECT a[1:2]", "SELECT a[1:2]", set()),
    ("SELECT a[x : y]", "SELECT a[x : y]", set()),
    ("SELECT '12:30'::time", "SELECT '12:30'::time", set()),
    ("SELECT data ? 'k'", "SELECT data ? 'k'", set()),
    ("SELECT :é", "SELECT :é", set()),
]


def test_only_parameters_are_replaced(subtests: pytest.Subtests) -> None:
    for text, pyformat, names in PARAMETERS:
        with subtests.test(text=text):
            assert parse_one(text)[:2] == (pyformat, frozenset(names))


def test_long_texts_are_not_kept() -> None:
    short, long = "SELECT :a", f"SELECT {', '.join(':a' for _ in range(10_000))}"
    assert parse(short) is parse(short)
    assert parse(long) is not parse(long)
    assert parse(long) == parse(long)


def test_the_text_for_sqlite_is_unchanged() -> None:
    text = "SELECT :a, '%', ':b' /* :c */ -- :d"
    assert parse(text)[0].text == text


KEYWORDS: list[tuple[str, str]] = [
    ("select 1", "SELECT"),
    ("  \n\tCommit", "COMMIT"),
    ("-- SELECT\nCOMMIT", "COMMIT"),
    ("/* SELECT /* 1 */ */ROLLBACK", "ROLLBACK"),
    ("(SELECT 1)", "SELECT"),
    (";;COMMIT;;", "COMMIT"),
    ("/**/-- x\nBEGIN", "BEGIN"),
    ("WITH a AS (SELECT 1) DELETE FROM b", "WITH"),
]


def test_the_keyword_is_the_first_word_outside_comments(subtests: pytest.Subtests) -> None:
    for text, keyword in KEYWORDS:
        with subtests.test(text=text):
            assert parse_one(text)[2] == keyword


STATEMENTS: list[tuple[str, list[str]]] = [
    ("", []),
    (" ;; -- nothing", []),
    ("/* SELECT 1 */", []),
    ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
    ("SELECT ';'; SELECT 2;", ["SELECT ';'", "SELECT 2"]),
    ("SELECT 1 -- ;\n; SELECT 2", ["SELECT 1 -- ;", "SELECT 2"]),
    ("SELECT $$;$$; COMMIT", ["SELECT $$;$$", "COMMIT"]),
    ('SELECT ";"', ['SELECT ";"']),
    ("SELECT 1 /* ; /* ; */ ; */", ["SELECT 1 /* ; /* ; */ ; */"]),
    ("SELECT 1 --\r; COMMIT", ["SELECT 1 --", "COMMIT"]),
    ("SELECT e';\\'; COMMIT; --'", ["SELECT e';\\'; COMMIT; --'"]),
    ("SELECT type';'; COMMIT", ["SELECT type';'", "COMMIT"]),
]


def test_a_text_is_split_into_its_statements(subtests: pytest.Subtests) -> None:
    for text, parts in STATEMENTS:
        with subtests.test(text=text):
            assert [statement.text for statement in parse(text)] == parts


def test_each_statement_has_its_own_names() -> None:
    first, second = parse("SELECT :a; SELECT :b")
    assert [set(first.names), set(second.names)] == [{"a"}, {"b"}]


@given(st.text(alphabet="ab:;'\"$%-/*\\ \n\rE1", max_size=40))
def test_any_text_can_be_parsed_without_loss(text: str) -> None:
    statements = parse(text)
    joined = "".join(statement.text for statement in statements)
    for statement in statements:
        restored = statement.pyformat.decode().replace("%%", "\0")
        for name in statement.names:
            restored = restored.replace(f"%({name})s", f":{name}")
        assert restored.replace("\0", "%") == statement.text
    if len(statements) == 1 and ";" not in text:
        assert joined == text.strip()


LONG_TEXTS: dict[str, Callable[[int], str]] = {
    "open comments": lambda count: "/*" * count,
    "closed comments": lambda count: "/* */ " * count,
    "dashes": lambda count: "-" * count,
    "quotes": lambda count: "'" * (2 * count + 1),
    "open names": lambda count: '"a' * (2 * count + 1),
    "escaped quotes": lambda count: "E'" + "\\'" * count,
    "one dollar tag": lambda count: "$a$" * (2 * count + 1),
    "many dollar tags": lambda count: " ".join(f"$a{number}$" for number in range(count)),
    "statements": lambda count: "SELECT 1;" * count,
    "parameters": lambda count: ", ".join(f":a{number}" for number in range(count)),
    "lookalikes": lambda count: ", ".join(f"':a{number}', :b" for number in range(count)),
}


def assert_parsed_in_linear_time(make: Callable[[int], str]) -> None:
    texts = {count: make(count) for count in (LONG, LONG * GROWTH)}
    assert_linear(lambda count: _parse(texts[count]), LONG)


def test_the_time_to_parse_a_text_grows_with_its_length_and_no_faster(
    subtests: pytest.Subtests,
) -> None:
    for name, make in LONG_TEXTS.items():
        with subtests.test(name):
            assert_parsed_in_linear_time(make)


def test_a_dollar_quote_that_is_not_closed_extends_to_the_end() -> None:
    text = "SELECT $x$ :a; $y$ :b"
    assert parse_one(text)[:2] == (text, frozenset())
