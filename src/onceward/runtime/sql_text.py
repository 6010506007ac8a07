"""Named parameters in plain SQL: ``:name`` on both stores, found without touching the rest.

Casts (``::text``), literals, quoted names, comments and ``%`` are left alone. The one spelling to
avoid is an array slice with a bare name after its colon: write ``[a : b]``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<skip> --[^\n\r]*
              | (?<!\w)[eE]'(?:[^'\\]|\\.|'')*'
              | '(?:[^']|'')*'
              | "(?:[^"]|"")*"
              | (?<![\w$])\$\$.*?\$\$
              | (?<![\w$])\$(?P<tag>[A-Za-z_]\w*)\$.*?\$(?P=tag)\$
              | :: )
    | (?P<block> /\*)
    | :(?P<name>[A-Za-z_]\w*)
    | (?P<percent>%)
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK_EDGE: Final = re.compile(r"/\*|\*/")
_KEYWORD: Final = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Sql:
    """One statement, ready for either driver."""

    text: str
    """With ``:name``, for sqlite3."""
    pyformat: bytes
    """With ``%(name)s``, for psycopg."""
    names: frozenset[str]
    keyword: str
    """Its first word, in capitals."""


@lru_cache(maxsize=1024)
def parse(text: str) -> tuple[Sql, ...]:
    """Split a text into its statements and find their parameters."""
    statements: list[Sql] = []
    text_parts: list[str] = []
    pyformat_parts: list[str] = []
    bare_parts: list[str] = []
    names: set[str] = set()

    def close() -> None:
        keyword = _KEYWORD.search("".join(bare_parts))
        if keyword:
            pyformat = "".join(pyformat_parts).strip().encode()
            statements.append(
                Sql(
                    "".join(text_parts).strip(), pyformat, frozenset(names), keyword.group().upper()
                )
            )
        for parts in (text_parts, pyformat_parts, bare_parts):
            parts.clear()
        names.clear()

    for kind, piece in _pieces(text):
        if kind == "end":
            close()
            continue
        text_parts.append(f":{piece}" if kind == "name" else piece)
        if kind == "name":
            names.add(piece)
            pyformat_parts.append(f"%({piece})s")
        else:
            pyformat_parts.append(piece.replace("%", "%%"))
        if kind == "plain":
            bare_parts.append(piece)
    close()
    return tuple(statements)


def _pieces(text: str) -> list[tuple[str, str]]:
    pieces: list[tuple[str, str]] = []
    position = 0
    while match := _TOKEN.search(text, position):
        if match.start() > position:
            pieces.append(("plain", text[position : match.start()]))
        position = match.end()
        kind = match.lastgroup or "skip"
        if kind == "block":
            position = _end_of_comment(text, match.end())
            pieces.append(("skip", text[match.start() : position]))
        elif kind == "name":
            pieces.append(("name", match.group("name")))
        elif kind in ("percent", "end"):
            pieces.append(("plain" if kind == "percent" else "end", match.group()))
        else:
            pieces.append(("skip", match.group()))
    if position < len(text):
        pieces.append(("plain", text[position:]))
    return pieces


def _end_of_comment(text: str, position: int) -> int:
    depth = 1
    for edge in _BLOCK_EDGE.finditer(text, position):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
