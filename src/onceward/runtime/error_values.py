"""Values in error messages: which messages quote them, and how they are masked.

The interpreter, databases and validators quote the value that they refuse. An error of a class that
the user, or another library, defined keeps its words.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

ELLIPSIS: Final = "…"

_DATABASES: Final = frozenset(
    {"aiosqlite", "asyncpg", "django", "mysql", "MySQLdb", "oracledb", "peewee", "psycopg"}
    | {"psycopg2", "psycopg_pool", "pymysql", "pyodbc", "sqlalchemy", "sqlite3", "tortoise"}
)
_VALIDATORS: Final = frozenset(
    {"attr", "attrs", "cattrs", "dateutil", "jsonschema", "marshmallow", "msgspec"}
    | {"pydantic", "pydantic_core"}
)
_INTERPRETER: Final = sys.stdlib_module_names | _VALIDATORS

_ABOUT_CODE: Final = (AttributeError, ImportError, NameError, TypeError)
"""Errors of the interpreter that quote names and types, not values."""
_TYPE_NAMES: Final = frozenset(
    {name for name, value in vars(builtins).items() if isinstance(value, type)} | {"NoneType"}
)

_SHORTEST_VALUE: Final = 4
_ORDINARY: Final = frozenset({"None", "True", "False", "null", "true", "false"})
"""Values that are also words of other messages, and tell nothing."""
_MAX_QUOTED: Final = 100
_MAX_SPLIT_CHARACTERS: Final = 1_000
_ESCAPE: Final = re.compile(r"""\\(?:[nrt\\'"]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})""")
_PART: Final = re.compile(r"[^\s,'\"(){}\[\]][^,'\"(){}\[\]]*")
"""A value in a row or in a list of parameters."""
_NEAR_CHARACTERS: Final = 20  # the longest noun before a name, and a word boundary

_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z_.-]{0,39}[0-9]?")
"""The name of a field, an attribute or a module. One digit may end it: ``line1``."""
_CLASS: Final = re.compile(r"[\w.]{1,80}")
_IDENTIFIER: Final = re.compile(r"[\w.$:/-]{1,80}")
_SQL_TOKEN: Final = re.compile(r"[a-z_]{1,20}|[A-Z_]{1,20}")
_OPERATOR: Final = re.compile(r"[^\w\s]{1,3}")
_DATE_FORMAT: Final = re.compile(r"(?=[^%]*%)(?:%[A-Za-z]|[-/.:,+TZ ])+")
_ADDRESS: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|(?=[^:]*:)[0-9a-f:]+")

# A quote inside a word, as in "can't" or "O'Brien", neither opens nor closes a value.
_QUOTED: Final = re.compile(
    r"""
      (?<!\w)b?(?P<open>['"])(?P<value>(?>(?:\\.|(?!(?P=open)(?!\w)).)*))(?P<close>(?P=open)|\Z)
    | “(?P<curly>[^”]*+)”?
    """,
    re.VERBOSE | re.DOTALL,
)
_STRAY_QUOTE: Final = re.compile(r"(?<!\w)['\"]|['\"](?!\w)")
_UNQUOTED: Final = re.compile(
    r"""
      (?<=unconverted\ data\ remains:\ ).+
    | (?<=unknown\ encoding:\ ).+
    | (?<=[Uu]nknown\ string\ format:\ ).+
    | (?<=String\ does\ not\ contain\ a\ date:\ ).+
    | (?<=\(got\ )[^)]+
    | ^-?\d[\d.eE+-]*(?=\ is\ not\ (?:in|a\ valid)\ )
    | (?<!Length\ of\ )(?P<bound>'\w+'\ must\ be\ [<>]=?\ \S+:\ ).+
    """,
    re.VERBOSE,
)
# Parts of messages of pydantic, PostgreSQL and SQLAlchemy, which an error of any class may repeat.
_DETAILS: Final = re.compile(
    r"""
      (?P<bound>input_value=)(?:.{1,500}?(?=,\ input_type=) | .+)
    | (?P<key>Key\ \([^()]{1,200}\)=\()
      (?:.{1,500}?(?=\)\ (?:already|conflicts|is)\ |\)?\.?$) | .+)
    | (?:(?<=Failing\ row\ contains\ \() | (?<=\[parameters:\ )).+
    """,
    re.VERBOSE | re.MULTILINE,
)

_AFTER_CLASS: Final = re.compile(r"<class $")
_AFTER_NOUN: Final = re.compile(
    r"\b(?:attribute|collation|column|constraint|cursor|database|domain|encoding|extension|function"
    r"|host name|index|key|language|operator|parameter|partition|policy|procedure|relation|role"
    r"|savepoint|schema|sequence|server at|server on socket|statement|table|trigger|type|user|view)"
    r" $"
)
_AFTER_NEAR: Final = re.compile(r"\bnear $")

_Keep = Callable[[str, str, str], bool]
"""Returns whether a quoted text stays, given the text before it, itself and the text after it."""


def mask_values(error: BaseException, message: str, *, from_database: bool = False) -> str:
    """Return the message of an error with each value that it may quote masked.

    Names stay: of types, attributes, arguments, columns, constraints. So does a missing key that
    has the form of a field's name.
    """
    return _mask_message(error, message, _Mask(), from_database=from_database)


def masked_values(error: BaseException, message: str, *, from_database: bool = False) -> list[str]:
    """Return the values that `mask_values` masks in a message, as another message may have them."""
    mask = _Mask()
    _mask_message(error, message, mask, from_database=from_database)
    return [text for value in mask.values for text in _spellings(value)]


def mask_texts(message: str, texts: Iterable[str]) -> str:
    """Return a message with the given texts masked, except very short and ordinary ones."""
    for text in sorted(set(texts), key=len, reverse=True):
        if len(text) >= _SHORTEST_VALUE and text not in _ORDINARY:
            message = message.replace(text, f"{ELLIPSIS} ({_count(len(text))})")
    return message


def _mask_message(error: BaseException, message: str, mask: _Mask, *, from_database: bool) -> str:
    if type(error) is KeyError and len(error.args) == 1:
        return mask.key(error.args[0])
    package = _package(error)
    message = _DETAILS.sub(mask.unquoted, message)
    if from_database or package in _DATABASES:
        return _masked(message, _is_database_name, mask)
    if package in _INTERPRETER:
        return _masked(_UNQUOTED.sub(mask.unquoted, message), _rule_of(error), mask)
    return message


def _package(error: BaseException) -> str:
    module = type.__dict__["__module__"].__get__(type(error))  # a metaclass may override it
    return module.partition(".")[0] if isinstance(module, str) else ""


# What stays.


def _rule_of(error: BaseException) -> _Keep:
    """Return the rule for the messages of a class of the interpreter or of a validator."""
    if isinstance(error, _ABOUT_CODE):
        return _is_name
    if isinstance(error, UnicodeError):
        encoding = getattr(error, "encoding", None)
        return lambda before, value, after: value == encoding or _is_harmless(before, value, after)
    if isinstance(error, OSError):
        return lambda before, value, after: (
            bool(_ADDRESS.fullmatch(value)) or _is_harmless(before, value, after)
        )
    return _is_harmless


def _is_harmless(before: str, value: str, after: str) -> bool:
    """Return whether a quoted text is no value: an operator, a type, a format, a checked field."""
    return (
        not value
        or value in _TYPE_NAMES
        or bool(_OPERATOR.fullmatch(value) or _DATE_FORMAT.fullmatch(value))
        or bool(_AFTER_CLASS.search(before) and _CLASS.fullmatch(value))
        or bool(after.startswith(" must ") and _FIELD.fullmatch(value))
    )


def _is_name(before: str, value: str, after: str) -> bool:
    return bool(_FIELD.fullmatch(value)) or _is_harmless(before, value, after)


def _is_database_name(before: str, value: str, after: str) -> bool:
    """Return whether a text that a database quotes is the name of an object, not a value."""
    if _AFTER_NOUN.search(before):
        return bool(_IDENTIFIER.fullmatch(value))
    if _AFTER_NEAR.search(before) and _SQL_TOKEN.fullmatch(value):
        return True
    return _is_harmless(before, value, after)


# Masks.


class _Mask:
    """Masks values, and remembers them."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def quoted(self, quote: str, value: str) -> str:
        self.values.append(value)
        return f"{quote}{ELLIPSIS}{quote} ({_count(len(value))})"

    def unquoted(self, match: re.Match[str]) -> str:
        kept = "".join(filter(None, match.groupdict().values()))
        value = match[0][len(kept) :]
        self.values += [value, *_PART.findall(value[:_MAX_SPLIT_CHARACTERS])]
        return f"{kept}{ELLIPSIS} ({_count(len(value))})"

    def key(self, key: object) -> str:
        if not isinstance(key, str):
            self.values += map(str, key if isinstance(key, tuple) else [key])
            return f"{ELLIPSIS} ({type(key).__name__})"
        return repr(key) if _FIELD.fullmatch(key) else self.quoted("'", key)


def _spellings(value: str) -> list[str]:
    """Return a value as quoted, and without the escapes that quoting added."""
    return [value, _ESCAPE.sub(_unescaped, value)]


def _unescaped(escape: re.Match[str]) -> str:
    return escape[0].encode().decode("unicode_escape", "replace")


def _masked(message: str, keep: _Keep, mask: _Mask) -> str:
    """Return a message with its quoted values masked.

    If the quotes do not pair up, a value contains some: mask all from the first quote on.
    """
    shown = ""
    end = 0
    found = list(islice(_QUOTED.finditer(message), _MAX_QUOTED + 1))
    if len(found) > _MAX_QUOTED:
        return _masked_from(message, found[0].start(), mask)
    for match in found:
        gap = message[end : match.start()]
        if match["close"] == "" or _STRAY_QUOTE.search(gap):
            return _masked_from(message, found[0].start(), mask)
        value = match["value"] if match["curly"] is None else match["curly"]
        is_kept = keep(_before(message, match), value, _after(message, match))
        shown += gap + (match[0] if is_kept else mask.quoted(match["open"] or '"', value))
        end = match.end()
    if found and _STRAY_QUOTE.search(message, end):
        return _masked_from(message, found[0].start(), mask)
    return shown + message[end:]


def _before(message: str, match: re.Match[str]) -> str:
    return message[max(0, match.start() - _NEAR_CHARACTERS) : match.start()]


def _after(message: str, match: re.Match[str]) -> str:
    return message[match.end() : match.end() + _NEAR_CHARACTERS]


def _masked_from(message: str, start: int, mask: _Mask) -> str:
    return message[:start] + mask.quoted("'", message[start:])


def _count(length: int) -> str:
    return "1 character" if length == 1 else f"{length} characters"
