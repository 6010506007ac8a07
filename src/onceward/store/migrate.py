"""Numbered migrations: those that the package contains, and those that a database lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from onceward.errors import ConfigurationError, MigrationsPending, NewerSchema
from onceward.runtime.redact import as_sentence
from onceward.version import __version__


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    text: str

    @property
    def label(self) -> str:
        """The number and the name, as operators see them."""
        return _label(self.number, self.name)


def migrations(dialect: str) -> list[Migration]:
    """Return all migrations of a dialect, in order."""
    folder = files(f"onceward.store.{dialect}").joinpath("migrations")
    loaded = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        loaded.append(Migration(int(number), name, file.read_text()))
    return sorted(loaded, key=lambda migration: migration.number)


def pending(dialect: str, applied: Iterable[int]) -> list[Migration]:
    """Return the migrations that are not in `applied`."""
    numbers = set(applied)
    return [migration for migration in migrations(dialect) if migration.number not in numbers]


def check_applied(dialect: str, applied: Mapping[int, str]) -> None:
    """Raise an error unless this version knows all migrations that were applied.

    Raise ConfigurationError if a migration has another name here: the schema is another one.
    Raise NewerSchema if a newer version migrated the database.
    """
    known = {migration.number: migration.name for migration in migrations(dialect)}
    for number, name in sorted(applied.items()):
        if known.get(number, name) != name:
            msg = (
                f"The database has the migration {_label(number, name)}, but in Onceward "
                f"{__version__} this number is {_label(number, known[number])}: a different build "
                "migrated it. Run that build, or use another database."
            )
            raise ConfigurationError(msg)
    if unknown := applied.keys() - known.keys():
        raise newer_schema(dialect, _label(max(unknown), applied[max(unknown)]))


@cache
def newest(dialect: str) -> Migration:
    """Return the last migration that this version knows."""
    return migrations(dialect)[-1]


def require_known(dialect: str, number: int | None) -> None:
    """Raise NewerSchema if the newest migration of a database is later than all known ones."""
    if (number or 0) > newest(dialect).number:
        raise newer_schema(dialect, f"{number:04}")


def newer_schema(dialect: str, label: str) -> NewerSchema:
    """Return the error of a process that meets a later migration than it knows."""
    return NewerSchema(
        f"Onceward {__version__} knows the schema up to {newest(dialect).label}, and the database "
        f"has {label}: a newer version migrated it. Stop all processes, install that version, and "
        "start again (docs/upgrading.md)"
    )


def require_none_pending(database: str, lacking: Sequence[Migration]) -> None:
    """Raise MigrationsPending if the database lacks migrations."""
    if lacking:
        labels = ", ".join(migration.label for migration in lacking)
        raise MigrationsPending(f"{database} lacks migrations ({labels})")


def failed(migration: Migration, reason: str) -> str:
    """Return the error text of a migration that failed."""
    return f"Migration {migration.label} failed: {reason}"


def failed_as_present(migration: Migration, reason: str, table: str) -> list[str]:
    """Return the error text of a migration whose changes exist, although its row does not."""
    row = f"(number, name) VALUES ({migration.number}, '{migration.name}')"
    advice = (
        f"The database has changes of this migration, but {table} lacks its row. Restore the "
        "database from a complete backup. Only if the whole migration is in place, add the row: "
    )
    return [as_sentence(failed(migration, reason)), f"{advice}INSERT INTO {table} {row}"]


def failed_as_foreign(database: str, reason: str, table: str, instead: str) -> str:
    """Return the error text of a database that has our names, but not the `table` of migrations."""
    return (
        f"{database} has tables that Onceward did not create: {reason}, but {table} does not "
        f"exist. Choose {instead}, with --database, ONCEWARD_DATABASE_URL or Inbox(…)."
    )


def _label(number: int, name: str) -> str:
    return f"{number:04} {name}"
