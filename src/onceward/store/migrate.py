"""Numbered migrations: what there is, and what a database still lacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    text: str


def migrations(dialect: str) -> list[Migration]:
    """All migrations of a dialect, in order."""
    found = []
    for file in files(f"onceward.store.{dialect}").joinpath("migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, file.read_text()))
    return sorted(found, key=lambda migration: migration.number)


def pending(dialect: str, applied: Iterable[int]) -> list[Migration]:
    """What a database lacks. Numbers it has and we do not know are a newer version's: fine."""
    known = set(applied)
    return [migration for migration in migrations(dialect) if migration.number not in known]
