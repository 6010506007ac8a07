"""Named parameters, ``:name``, in the SQL of both stores.

Casts (``::text``), literals, quoted names, comments and ``%`` stay as they are. Put spaces around
the colon of an array slice, ``[a : b]``: a name directly after a colon is a parameter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# A dollar quote that is not closed extends to the end, as in PostgreSQL. If each one were searched
# for its own end in vain, the time would grow with the square of the text.
_TOKEN: Final = re.compile(
    r"""
      (?P<skip> --[^\n\r]*
              | (?<!\w)[eE]'(?:[^'\\]|\\.|'')*'
              | '(?:[^']|'')*'
              | "(?:[^"]|"")*"
              | (?<![\w$])\$\$.*?(?:\$\$|\Z)
              | (?<![\w$])\$(?P<tag>[A-Za-z_]\w*)\$.*?(?:\$(?P=tag)\$|\Z)
              | :: )
    | (?P<block> /\*)
    | :(?P<name>[A-Za-z_]\w*)
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK_EDGE: Final = re.compile(r"/\*|\*/")
_KEYWORD: Final = re.compile(r"[A-Za-z]+")
_PLACEHOLDER: Final = re.compile(r"\?\d*|%s|%\(\w+\)s|\$\d+")
_PYFORMAT: Final = re.compile(r"%\((\w+)\)s")
_QUOTED: Final = re.compile(r"(?<![\w:]):([A-Za-z_]\w*)")
_COMMENT: Final = ("--", "/*")
_CACHED_CHARACTERS: Final = 32 * 1024
"""Longer texts are parsed each time: events may decide how many columns or rows they name."""


@dataclass(frozen=True, slots=True)
class Sql:
    """One statement, in the form of each driver."""

    text: str
    """Has ``:name``, for sqlite3."""
    pyformat: bytes
    """Has ``%(name)s``, for psycopg."""
    names: frozenset[str]
    keyword: str
    """The first word, in capitals."""
    lookalikes: tuple[tuple[str, str], ...] = ()
    """Names that look like parameters and are none, each with what to write instead."""


def parse(text: str) -> tuple[Sql, ...]:
    """Split a text into its statements, with their parameters."""
    return _parse_cached(text) if len(text) <= _CACHED_CHARACTERS else _parse(text)


@lru_cache(maxsize=1024)
def _parse_cached(text: str) -> tuple[Sql, ...]:
    return _parse(text)


def _parse(text: str) -> tuple[Sql, ...]:
    statements: list[Sql] = []
    text_parts: list[str] = []
    pyformat_parts: list[str] = []
    code_parts: list[str] = []
    names: set[str] = set()
    lookalikes: dict[str, str] = {}

    def end_statement() -> None:
        keyword = _KEYWORD.search("".join(code_parts))
        if keyword:
            pyformat = "".join(pyformat_parts).strip().encode()
            others = tuple(item for item in lookalikes.items() if item[0] not in names)
            statements.append(
                Sql(
                    "".join(text_parts).strip(),
                    pyformat,
                    frozenset(names),
                    keyword.group().upper(),
                    others,
                )
            )
        for parts in (text_parts, pyformat_parts, code_parts, names, lookalikes):
            parts.clear()

    for kind, piece in _tokens(text):
        if kind == "end":
            end_statement()
            continue
        if kind == "name":
            names.add(piece)
            text_parts.append(f":{piece}")
            pyformat_parts.append(f"%({piece})s")
        else:
            text_parts.append(piece)
            pyformat_parts.append(piece.replace("%", "%%"))
            lookalikes |= _lookalikes(kind, piece)
        if kind == "code":
            code_parts.append(piece)
    end_statement()
    return tuple(statements)


def find_placeholder(text: str) -> str | None:
    """Return the first ``?``, ``%s`` or ``$1`` outside literals and comments, or None.

    Some are operators of PostgreSQL as well, so that a text alone does not prove a mistake.
    """
    for kind, piece in _tokens(text):
        if kind == "code" and (match := _PLACEHOLDER.search(piece)):
            return match.group()
    return None


def _lookalikes(kind: str, piece: str) -> dict[str, str]:
    """Return the names in a part that look like parameters, each with what to write instead."""
    if kind == "code":
        return {name: f"write :{name}, not %({name})s" for name in _PYFORMAT.findall(piece)}
    if piece.startswith(_COMMENT):
        return {}
    hint = "is in quotes, which makes it a text and no parameter; write"
    return {
        name: f":{name} {hint} :{name} without quotes"
        + ("" if piece[1:-1] == f":{name}" else ", joined to other texts with ||")
        for name in _QUOTED.findall(piece)
    }


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return the parts of a text with their kinds: code, skip (comment or literal), name, end."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while match := _TOKEN.search(text, position):
        if match.start() > position:
            tokens.append(("code", text[position : match.start()]))
        position = match.end()
        kind = match.lastgroup or "skip"
        if kind == "block":
            position = _end_of_comment(text, match.end())
            tokens.append(("skip", text[match.start() : position]))
        elif kind == "name":
            tokens.append(("name", match.group("name")))
        else:
            tokens.append((kind, match.group()))
    if position < len(text):
        tokens.append(("code", text[position:]))
    return tokens


def _end_of_comment(text: str, position: int) -> int:
    """Return the end of a block comment. PostgreSQL's may nest."""
    depth = 1
    for edge in _BLOCK_EDGE.finditer(text, position):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
