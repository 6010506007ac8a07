"""Named SQL statements, loaded from .sql files.

``sql/`` holds the statements that both dialects share, ``<dialect>/sql/`` those that differ. A name
is defined once in the shared folder or once in each dialect. Shared statements are written with
``onceward.`` before a table and ``:now`` for the clock; each dialect has its own form of the two.

A statement begins with ``-- name: x`` and a comment that says what it is for. The lines between
``-- if y`` and ``-- end`` belong to it only under the condition y; such blocks do not nest. A
dialect may need several statements for one name: they run in order, in one transaction, and the
rows of the last one are the result.

A part that several statements of a dialect share begins with ``-- fragment: x`` and ends where the
next statement begins. A line ``-- use x`` stands for it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Final

from onceward.runtime.sql_text import Sql, parse

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_FRAGMENT: Final = re.compile(
    r"^-- fragment: (\w+)\n(.*?)(?=^-- name: |^-- fragment: |\Z)", re.MULTILINE | re.DOTALL
)
_USE: Final = re.compile(r"^ *-- use (\w+)\n", re.MULTILINE)
_BLOCK: Final = re.compile(r"^ *-- if (\w+)\n(.*?)^ *-- end\n", re.MULTILINE | re.DOTALL)
_DIALECT_FORM: Final = {
    "postgres": (re.compile(r":now\b"), "clock_timestamp()"),
    "sqlite": (re.compile(r"\bonceward\."), "onceward_"),
}


class Queries:
    """The statements of one dialect."""

    def __init__(self, dialect: str) -> None:
        self._texts = _load(dialect)

    def __call__(self, name: str, *conditions: str) -> tuple[Sql, ...]:
        """Return the statements called `name`, with the blocks of `conditions`."""
        return _compose(self._texts[name], conditions)

    def one(self, name: str, *conditions: str) -> Sql:
        """Return the only statement called `name`, with the blocks of `conditions`."""
        (statement,) = self(name, *conditions)
        return statement


@lru_cache
def _load(dialect: str) -> dict[str, str]:
    marker, form = _DIALECT_FORM[dialect]
    shared = _read("onceward.store").items()
    own = _read(f"onceward.store.{dialect}")
    return {name: marker.sub(form, text) for name, text in shared} | own


def _read(package: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    fragments: dict[str, str] = {}
    for file in files(package).joinpath("sql").iterdir():
        text = file.read_text()
        fragments.update(_FRAGMENT.findall(text))
        _, *parts = _NAME.split(_FRAGMENT.sub("", text))
        texts.update(zip(parts[::2], parts[1::2], strict=True))
    return {
        name: _USE.sub(lambda line: fragments[line[1]].rstrip() + "\n", text)
        for name, text in texts.items()
    }


@lru_cache
def _compose(text: str, conditions: tuple[str, ...]) -> tuple[Sql, ...]:
    return parse(_BLOCK.sub(lambda block: block[2] if block[1] in conditions else "", text))
