"""Messages of the interpreter, of databases and of validators show no values."""

import datetime as dt
import decimal
import enum
import ipaddress
import json
import sqlite3
import subprocess
import sys
import time
import zoneinfo
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psycopg
import pydantic
import pytest

from onceward.errors import PermanentError, StoreError, Unwritable
from onceward.runtime.error_text import describe
from tests.cpu_time import within

NAME = "John Smith"
LONGER = "John Smith of Springfield"


class Plan(enum.Enum):
    GOLD = "gold"


class Order(pydantic.BaseModel):
    amount: int


class OwnError(Exception):
    """An error of the user's own code."""


class OwnKeyError(KeyError):
    """An error of the user's own code, with words instead of a key."""


class OwnValueError(ValueError):
    """An error of the user's own code that has a base of the interpreter."""


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - any error is the subject
        return error
    raise AssertionError("no error was raised")


def query(sql: str, *values: Any) -> Callable[[], object]:
    def run() -> None:
        with closing(sqlite3.connect(":memory:")) as database:
            database.execute("CREATE TABLE customers (email text UNIQUE, age int NOT NULL)")
            database.execute("INSERT INTO customers VALUES (?, 1)", [NAME])
            database.execute(sql, values)

    return run


INTERPRETER_ERRORS: list[tuple[Callable[[], object], str]] = [
    (
        lambda: int(NAME),
        "ValueError: invalid literal for int() with base 10: '…' (10 characters)",
    ),
    (
        lambda: int("O'Brien"),
        'ValueError: invalid literal for int() with base 10: "…" (7 characters)',
    ),
    (
        lambda: float(NAME),
        "ValueError: could not convert string to float: '…' (10 characters)",
    ),
    (lambda: int(""), "ValueError: invalid literal for int() with base 10: ''"),
    (
        lambda: time.strptime(NAME, "%Y-%m-%d %H:%M"),
        "ValueError: time data '…' (10 characters) does not match format '%Y-%m-%d %H:%M'",
    ),
    (
        lambda: time.strptime(f"2026{NAME}", "%Y"),
        "ValueError: unconverted data remains: … (10 characters)",
    ),
    (
        lambda: dt.date.fromisoformat(NAME),
        "ValueError: Invalid isoformat string: '…' (10 characters)",
    ),
    (lambda: Plan(NAME), "ValueError: '…' (10 characters) is not a valid Plan"),
    (lambda: Plan(12345), "ValueError: … (5 characters) is not a valid Plan"),
    (lambda: ["a"].index(NAME), "ValueError: '…' (10 characters) is not in list"),
    (
        lambda: ipaddress.ip_address(NAME),
        "ValueError: '…' (10 characters) does not appear to be an IPv4 or IPv6 address",
    ),
    (
        lambda: NAME.encode(NAME),
        "LookupError: unknown encoding: … (10 characters)",
    ),
    (
        lambda: json.loads(f'{{"name" "{NAME}"}}'),
        "JSONDecodeError: Expecting ':' delimiter: line 1 column 9 (char 8)",
    ),
    (
        lambda: decimal.Decimal(NAME),
        "InvalidOperation: [<class 'decimal.ConversionSyntax'>]",
    ),
    (lambda: zoneinfo.ZoneInfo(NAME), "ZoneInfoNotFoundError: '…' (38 characters)"),
    (
        lambda: Path(f"/nowhere/{NAME}").read_bytes(),
        "FileNotFoundError: [Errno 2] No such file or directory: '…' (19 characters)",
    ),
]


def test_a_value_that_the_interpreter_quotes_is_masked(subtests: pytest.Subtests) -> None:
    for call, text in INTERPRETER_ERRORS:
        with subtests.test(text):
            assert describe(raised_by(call)) == text


def test_an_error_of_a_codec_shows_the_codec_and_the_position() -> None:
    text = describe(raised_by(lambda: "Jöhn".encode("ascii")))
    start = (
        "UnicodeEncodeError: 'ascii' codec can't encode character '…' (4 characters) in position"
    )
    assert text.startswith(f"{start} 1: ")
    text = describe(raised_by(b"John\xff".decode))
    assert text.startswith("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 4")


def test_the_arguments_of_a_failed_command_are_masked() -> None:
    command = [sys.executable, "-c", "raise SystemExit(1)", NAME]
    error = raised_by(lambda: subprocess.run(command, check=True))
    assert describe(error).startswith("CalledProcessError: Command '…' (")
    assert "Smith" not in describe(error)


MISSING_KEYS: list[tuple[object, str]] = [
    ("amount", "KeyError: 'amount'"),
    ("line1", "KeyError: 'line1'"),
    ("data.object.line-items", "KeyError: 'data.object.line-items'"),
    ("alice@example.com", "KeyError: '…' (17 characters)"),
    (NAME, "KeyError: '…' (10 characters)"),
    ("cus_9s6XKzkNRiz8i3", "KeyError: '…' (18 characters)"),
    ("4111", "KeyError: '…' (4 characters)"),
    ("a" * 42, "KeyError: '…' (42 characters)"),
    (4111, "KeyError: … (int)"),
    (("Smith", "John"), "KeyError: … (tuple)"),
]


def test_a_missing_key_is_shown_if_it_may_be_a_fields_name(subtests: pytest.Subtests) -> None:
    payload: dict[Any, Any] = {}
    for key, text in MISSING_KEYS:
        with subtests.test(key=key):
            assert describe(raised_by(partial(payload.__getitem__, key))) == text


CODE_ERRORS = [
    raised_by(lambda: None.get("amount")),  # type: ignore[attr-defined]
    raised_by(lambda: "a" + 1),  # type: ignore[operator]
    raised_by(lambda: max("a", 1)),
    raised_by(lambda: sorted([], foo=1)),  # type: ignore[call-overload]
    raised_by(lambda: {[]: 1}),
    raised_by(lambda: __import__("no_such_module")),
    raised_by(lambda: undefined_name),  # type: ignore[name-defined]  # noqa: F821
]


def test_names_and_types_of_the_code_stay(subtests: pytest.Subtests) -> None:
    for error in CODE_ERRORS:
        with subtests.test(error=error):
            assert describe(error) == f"{type(error).__name__}: {error}"


def test_the_address_of_a_refused_connection_stays() -> None:
    error = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 5432)")
    assert "('127.0.0.1', 5432)" in describe(error)


QUOTED = [
    f"no plan '{LONGER}' here",
    f"no plan 'O'Brien {LONGER}' here",
    f"no plan 'James' {LONGER}' here",
    f"no plan 'James' {LONGER}' or 'gold'",
    f"no plan 'gold' for '{LONGER}",
    f'no plan "gold" or "James" {LONGER}"',
    f"no plan “{LONGER}” here",
    f"no plan “{LONGER}",
    f"no plan {'“”' * 110}“{LONGER}”",
    f"no plan {LONGER!r} and {[LONGER]!r} and {LONGER.encode()!r}",
    f"no plan '{LONGER}\\' here",
]


def test_no_kind_of_quote_shows_a_value_of_a_builtin_error(subtests: pytest.Subtests) -> None:
    for message in QUOTED:
        with subtests.test(message):
            text = describe(ValueError(message))
            assert text.startswith("ValueError: no plan ")
            assert "Springfield" not in text
            assert "…" in text


def test_an_error_of_the_users_own_class_keeps_its_words(subtests: pytest.Subtests) -> None:
    for error in [
        OwnError(f"no such plan {NAME!r}"),
        OwnValueError(f"no such plan {NAME!r}"),
        OwnKeyError(f"no such plan {NAME!r}"),
        PermanentError(f"no such plan {NAME!r}"),
    ]:
        with subtests.test(error=error):
            assert f"no such plan {NAME!r}" in describe(error)


DETAILS = [
    ("input_value='John', input_type=str]", "input_value=… (6 characters), input_type=str]"),
    (
        "input_value={'a': 5}, input_type=dict]",
        "input_value=… (8 characters), input_type=dict]",
    ),
    ("Key (a, b)=(John, (1)) is not present", "Key (a, b)=(… (9 characters)) is not present"),
    ("Key (name)=(John)", "Key (name)=(… (4 characters))"),
    ("[parameters: {'name': 'John'}]", "[parameters: … (17 characters)"),
]


def test_details_of_a_database_and_of_pydantic_are_masked_in_every_error(
    subtests: pytest.Subtests,
) -> None:
    for message, text in DETAILS:
        with subtests.test(message):
            assert describe(OwnError(message)) == f"OwnError: {text}"
            assert describe(PermanentError(message)) == text
            assert describe(OwnError(message), show_values=True) == f"OwnError: {message}"


def test_an_error_of_the_users_own_class_shows_no_secret() -> None:
    assert describe(OwnError("password: hunter2")) == "OwnError: password: [redacted]"


REPEATED_CAUSES = [
    raised_by(lambda: int(NAME)),
    raised_by(lambda: Order(amount=NAME)),  # type: ignore[arg-type]
    raised_by(lambda: vars()[NAME]),
]


def test_the_message_of_a_cause_shows_no_value_where_it_is_repeated(
    subtests: pytest.Subtests,
) -> None:
    for own, cause in product((OwnError, PermanentError, OwnValueError), REPEATED_CAUSES):
        with subtests.test(own=own, cause=cause):
            chained = own(f"no order for gold: {cause}")
            chained.__cause__ = cause
            in_context = own(f"no order for gold: {cause}")
            in_context.__context__ = cause
            for error in (chained, in_context):
                assert "no order for gold: " in describe(error)
                assert "Smith" not in describe(error)


QUOTING_CAUSES: list[tuple[Exception, str]] = [
    (KeyError(NAME), NAME),
    (KeyError((41_115_999, 7)), "41115999"),
    (KeyError(("acme", NAME)), NAME),
    (raised_by(lambda: int(NAME)), NAME),
    (raised_by(lambda: int("John\nSmith")), "John\nSmith"),
    (psycopg.DataError(r'invalid value: "C:\data\U00119999\x0"'), r"C:\data\U00119999\x0"),
    (raised_by(lambda: int("Jöhn\tΣmith")), "Jöhn\tΣmith"),
    (raised_by(lambda: dt.datetime.strptime("2026John", "%Y")), "John"),  # noqa: DTZ007
    (psycopg.DataError(f'invalid input syntax for type integer: "{NAME}"'), NAME),
    (psycopg.DataError(f"x\nDETAIL:  Key (email)=({NAME}) already exists."), NAME),
    (psycopg.DataError(f"x\nDETAIL:  Failing row contains (7, {NAME}, null)."), NAME),
]


def test_a_value_that_a_cause_quotes_is_masked_in_the_message(subtests: pytest.Subtests) -> None:
    for own in (OwnError, PermanentError, OwnValueError, ValueError):
        for cause, value in QUOTING_CAUSES:
            with subtests.test(own=own, cause=cause):
                for error in (
                    own(f"no order for {value} on gold"),
                    own(f"no order for gold: <{value}>"),
                ):
                    error.__cause__ = cause
                    shown = str(error).replace(value, f"… ({len(value)} characters)")
                    assert describe(error).endswith(shown)
                    assert f"({len(value)} characters)" not in describe(error, show_values=True)


SHORT_CAUSES: list[Exception] = [
    KeyError("invoice"),
    KeyError("abc"),
    KeyError((None, True)),
    OwnError("'invoice' null"),
    psycopg.DataError("x\nDETAIL:  Failing row contains (7, null)."),
    raised_by(lambda: object().invoice),  # type: ignore[attr-defined]
]


def test_names_and_short_values_of_a_cause_stay_in_the_message(subtests: pytest.Subtests) -> None:
    for cause in SHORT_CAUSES:
        with subtests.test(cause=cause):
            error = OwnError("abc: invoice 7 has None, null")
            error.__cause__ = cause
            assert describe(error) == "OwnError: abc: invoice 7 has None, null"


DATABASE_VALUES = [
    (
        'invalid input syntax for type integer: "John Smith"',
        'invalid input syntax for type integer: "…" (10 characters)',
    ),
    (
        'invalid input value for enum mood: "John"',
        'invalid input value for enum mood: "…" (4 characters)',
    ),
    (
        'value "99999999" is out of range for type integer',
        'value "…" (8 characters) is out of range for type integer',
    ),
    ('malformed array literal: "{a" b"', "malformed array literal: '…' (7 characters)"),
    (
        'column "John Smith" does not exist',
        'column "…" (10 characters) does not exist',
    ),
    ('syntax error at or near "Smith"', 'syntax error at or near "…" (5 characters)'),
    ("Key (email)=(a b) already exists.", "Key (email)=(… (3 characters)) already exists."),
    ("Failing row contains (1, John).", "Failing row contains (… (9 characters)"),
    (
        "Duplicate entry 'John Smith' for key 'customers.email_1'",
        "Duplicate entry '…' (10 characters) for key 'customers.email_1'",
    ),
]


def test_a_value_that_a_database_quotes_is_masked(subtests: pytest.Subtests) -> None:
    for message, text in DATABASE_VALUES:
        with subtests.test(message):
            assert describe(psycopg.DataError(message)) == f"DataError: {text}"
            error = OwnError("not shown")
            error.diag = SimpleNamespace(message_primary=message)  # type: ignore[attr-defined]
            assert describe(error) == f"OwnError: {text}"
            assert describe(Unwritable(message)) == text


DATABASE_NAMES = [
    'null value in column "email_2" of relation "users" violates not-null constraint',
    'duplicate key value violates unique constraint "users_email_key"',
    'syntax error at or near "FORM"',
    'column "amout" does not exist',
    "value too long for type character varying(10)",
    'connection to server at "10.0.0.1", port 5432 failed: no role for user "app_1"',
    "UNIQUE constraint failed: users.email",
]


def test_the_names_of_a_databases_objects_stay(subtests: pytest.Subtests) -> None:
    for message in DATABASE_NAMES:
        with subtests.test(message):
            assert describe(psycopg.DataError(message)) == f"DataError: {message}"
            assert describe(StoreError(message)) == message


SQLITE_ERRORS: list[tuple[Callable[[], object], str]] = [
    (
        query("INSERT INTO customers VALUES (?, 1)", NAME),
        "IntegrityError: UNIQUE constraint failed: customers.email",
    ),
    (query("CREAT TABLE x"), 'OperationalError: near "CREAT": syntax error'),
    (
        query(f"SELECT 1 AS {NAME} again"),
        'OperationalError: near "…" (5 characters): syntax error',
    ),
    (
        query(f"SELECT '{NAME}"),
        'OperationalError: unrecognized token: "…" (11 characters)',
    ),
    (query("SELECT amount FROM orders"), "OperationalError: no such table: orders"),
]


def test_an_error_of_sqlite_shows_names_only(subtests: pytest.Subtests) -> None:
    for call, text in SQLITE_ERRORS:
        with subtests.test(text):
            assert describe(raised_by(call)) == text


def test_an_error_of_a_validator_shows_no_value() -> None:
    error = raised_by(lambda: msgspec.json.decode(b'{"plan": "John"}', type=dict[str, Plan]))
    text = "ValidationError: Invalid enum value '…' (4 characters) - at `$[...]`"
    assert describe(error) == text
    text = describe(raised_by(lambda: Order(amount=NAME)))  # type: ignore[arg-type]
    assert text == "ValidationError: 1 validation error for Order …"


def test_values_are_shown_on_request_but_no_secrets() -> None:
    assert describe(KeyError(NAME), show_values=True) == f"KeyError: {NAME!r}"
    error = ValueError(f"no plan {NAME!r}, token=abc123")
    text = f"ValueError: no plan {NAME!r}, token=[redacted]"
    assert describe(error, show_values=True) == text


UNITS = ["'", '"', "'a' ", "b'", "“", "\\'", "' '", "(got ", "near '", "Key (a)=(", "input_value="]


def test_a_long_message_is_masked_quickly(subtests: pytest.Subtests) -> None:
    for unit in UNITS:
        with subtests.test(unit):
            message = unit * (1_000_000 // len(unit))
            for error in (ValueError(message), psycopg.DataError(message)):
                assert len(within(0.1, partial(describe, error))) <= 500
