"""Mutants of SQL statements: a lock or an order is left out, or a condition always holds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from mutants.mutant import Mutant
from mutants.targets import ROOT

NAME: Final = re.compile(r"^-- (?:name|fragment): (\w+)$", re.MULTILINE)
BLOCK: Final = re.compile(r"^ *-- if (\w+)\n.*?^ *-- end$", re.MULTILINE | re.DOTALL)
CODE_LINE: Final = re.compile(r"^(?! *--)[^\n]+$", re.MULTILINE)
LEFT_OUT: Final = {
    "drop a lock": re.compile(r"\bFOR (?:NO KEY |KEY )?(?:SHARE|UPDATE)(?: SKIP LOCKED)?\b"),
    "drop skip locked": re.compile(r"\bSKIP LOCKED\b"),
    "drop an order": re.compile(r"^ *ORDER BY [^()]+$"),
}
CONDITIONS: Final = re.compile(r"^ *(?:WHERE|AND|.* (?<!DISTINCT )(?:ON|WHERE))\b ?(.*?)[;,]?$")
# A condition that continues on other lines, or that is the end of another clause.
UNFINISHED: Final = re.compile(r"(?:\b(?:OR|IN|THEN|ELSE|BETWEEN|WHEN|SELECT)|[(,=])$")
OTHER_CLAUSE: Final = re.compile(
    r"\b(?:THEN|ELSE|END|ORDER BY|LIMIT|GROUP BY|RETURNING|BETWEEN|FOR SHARE)\b"
    r"|^(?:CONFLICT|CONSTRAINT|true)\b"
)


class Passage(NamedTuple):
    """A part of a line that is replaced."""

    kind: str
    start: int
    before: str
    after: str


def sql_mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file of statements."""
    source = (ROOT / path).read_text()
    names = [(match.start(), match[1]) for match in NAME.finditer(source)]
    blocks = [(match.start(), match.end(), match[1]) for match in BLOCK.finditer(source)]
    for line in CODE_LINE.finditer(source):
        for kind, start, before, after in _passages(line[0]):
            position = line.start() + start
            yield Mutant(
                path=str(path),
                line=source.count("\n", 0, position) + 1,
                kind=kind,
                before=before,
                after=after,
                start=len(source[:position].encode()),
                scope=max(each for each in names if each[0] < position)[1],
                condition=next((name for start, end, name in blocks if start < position < end), ""),
            )


def _passages(line: str) -> Iterator[Passage]:
    for kind, pattern in LEFT_OUT.items():
        for match in pattern.finditer(line):
            yield Passage(kind, match.start(), match[0], "")
    code = line.partition(" --")[0]
    conditions = CONDITIONS.match(code)
    if conditions is not None:
        for start, text in _conjuncts(conditions[1]):
            if not UNFINISHED.search(text) and not OTHER_CLAUSE.search(text):
                yield Passage("drop a condition", conditions.start(1) + start, text, "true")


def _conjuncts(text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts between the outer ANDs, without those that close or open a parenthesis."""
    depth, start = 0, 0
    for position in range(len(text) + 1):
        if text[position : position + 1] in "()" and position < len(text):
            depth += 1 if text[position] == "(" else -1
            if depth < 0:
                return
        if depth == 0 and (position == len(text) or text.startswith(" AND ", position)):
            yield start, text[start:position]
            start = position + len(" AND ")
