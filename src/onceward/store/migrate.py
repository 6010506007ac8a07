"""Numbered migrations: those that the package contains, and those that a database lacks."""

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

    @property
    def label(self) -> str:
        """The number and the name, as operators see them."""
        return f"{self.number:04} {self.name}"


def migrations(dialect: str) -> list[Migration]:
    """Return all migrations of a dialect, in order."""
    folder = files(f"onceward.store.{dialect}").joinpath("migrations")
    loaded = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        loaded.append(Migration(int(number), name, file.read_text()))
    return sorted(loaded, key=lambda migration: migration.number)


def pending(dialect: str, applied: Iterable[int]) -> list[Migration]:
    """Return the migrations that are not in `applied`.

    Ignore unknown numbers in `applied`: a newer version has migrated the database.
    """
    numbers = set(applied)
    return [migration for migration in migrations(dialect) if migration.number not in numbers]
