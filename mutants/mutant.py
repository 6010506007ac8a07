"""A mutant: one small change of one file."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple


class Identity(NamedTuple):
    """The identity of a mutant, which stays the same when lines move."""

    module: str
    scope: str
    change: str
    after: str
    occurrence: int


@dataclass(frozen=True)
class Mutant:
    """A change of one passage of a file."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    """The position of the passage, in bytes."""
    scope: str
    """The function or the SQL statement that contains it, or the module's constant."""
    condition: str = ""
    """The condition under which the passage is part of its SQL statement."""
    occurrence: int = 1
    """The number of the passage among equal changes of the scope."""

    @property
    def module(self) -> str:
        """The path within the package."""
        return self.path.removeprefix("src/onceward/")

    @property
    def change(self) -> str:
        """The change in one line."""
        return f"{self.kind}: {one_line(self.before)}"

    @property
    def identity(self) -> Identity:
        """The identity, by which results are kept."""
        return Identity(self.module, self.scope, self.change, one_line(self.after), self.occurrence)

    @property
    def label(self) -> str:
        """The place and the change in one line."""
        return f"{self.module}:{self.line} {self.scope}, {self.change}"

    def apply(self, root: Path) -> None:
        """Change the file in a copy of the tree."""
        path = root / self.path
        source = path.read_bytes()
        end = self.start + len(self.before.encode())
        assert source[self.start : end] == self.before.encode(), self
        path.write_bytes(source[: self.start] + self.after.encode() + source[end:])


def numbered(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Return the mutants of a file in the order of its text, with equal changes numbered."""
    counts: Counter[Identity] = Counter()
    found = []
    for mutant in sorted(dict.fromkeys(mutants), key=lambda mutant: mutant.start):
        counts[mutant.identity] += 1
        found.append(replace(mutant, occurrence=counts[mutant.identity]))
    return found


def one_line(text: str, limit: int = 90) -> str:
    """Return a text without line breaks, cut to a limit."""
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else f"{joined[: limit - 1]}…"
