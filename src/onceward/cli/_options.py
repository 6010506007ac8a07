"""Shared by the commands: options, errors and output.

Every text is printed here or by `_console`, and escaped: senders choose ids, headers and responses,
and a terminal obeys control characters.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import msgspec

from onceward.cli._loading import AppFailed, user_frames
from onceward.errors import (
    ArchiveError,
    ConfigurationError,
    MigrationsPending,
    OncewardError,
    PreparationFailed,
    StoreBlocked,
    StoreError,
    StoreUnavailable,
)
from onceward.runtime.redact import as_sentence, escape_controls, printable, redact, redact_url
from onceward.settings import DATABASE_PLACES

F = TypeVar("F", bound=Callable[..., Any])

_database_option = click.option(
    "--database", metavar="URL", help="The database: sqlite:///file.db or postgresql://…"
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line."
)
_weak_durability_option = click.option(
    "--allow-weak-durability",
    is_flag=True,
    default=None,
    help="Start even if the database may lose acknowledged writes.",
)
_workers_option = click.option(
    "--workers", type=click.IntRange(min=0), help="Handlers to run concurrently in this process."
)


def database_options(command: F) -> F:
    """Add --database and --json."""
    return _database_option(json_option(command))


def service_options(command: F) -> F:
    """Add the options of commands that run the service."""
    return database_options(_weak_durability_option(_workers_option(command)))


def drop_unset(**options: Any) -> dict[str, Any]:
    """Return the options that were set on the command line: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def report_errors() -> Iterator[None]:
    """Print Onceward's own errors without a traceback, and exit with code 2."""
    try:
        yield
    except MigrationsPending as error:
        pending = MigrationsPending(error.state, _migrate_command())
        print_line(f"onceward: {printable(str(pending))}", err=True)
        sys.exit(2)
    except ConfigurationError as error:
        for fault in error.faults:
            print_line(f"onceward: {printable(fault)}", err=True)
        sys.exit(2)
    except AppFailed as error:
        for line in filter(None, (str(error), error.hint)):
            print_line(f"onceward: {line}", err=True)
        print_lines(error.frames, err=True)
        sys.exit(2)
    except PreparationFailed as error:
        print_line(f"onceward: {printable(str(error))}", err=True)
        if error.__cause__ is not None:
            print_lines(user_frames(error.__cause__), err=True)
        sys.exit(2)
    except StoreError as error:
        reason = as_sentence(redact(str(error)))
        print_line(f"onceward: {reason} {_database_advice(error)}".rstrip(), err=True)
        sys.exit(2)
    except OncewardError as error:
        print_line(f"onceward: {_error_text(error)}", err=True)
        sys.exit(2)


def _error_text(error: OncewardError) -> str:
    # The name of an archived file looks like a secret, and is none.
    if isinstance(error, ArchiveError):
        return printable(str(error))
    return redact(" ".join(str(error).split()))


def _migrate_command() -> str:
    """Return the command that migrates the database of the command that is running."""
    given = click.get_current_context().params
    if database := given.get("database"):
        # A password must not be shown, and a query is left out with it.
        shown = shlex.quote(database) if redact_url(database) == database else "…"
        return f"onceward migrate --database {shown}"
    app = given.get("app")
    return f"onceward migrate {shlex.quote(app)}" if app else "onceward migrate"


def _database_advice(error: StoreError) -> str:
    if isinstance(error, StoreBlocked):
        return ""
    if isinstance(error, StoreUnavailable):
        return f"Check the database: {DATABASE_PLACES}."
    if "permission denied" in str(error):
        return "Grant the role what docs/install.md lists for PostgreSQL."
    return "Check what else uses this database, and `onceward migrate`."


# Output.


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line. A line break in the text is escaped, as all control characters are."""
    click.echo(escape_controls(text), err=err)


def print_lines(text: str, *, err: bool = False) -> None:
    """Print a text of several lines. Other control characters are escaped."""
    for line in text.removesuffix("\n").split("\n") if text else ():
        print_line(line, err=err)


def print_json(content: object) -> None:
    """Print one object on one line, and flush."""
    click.echo(_escape_json(msgspec.json.encode(content).decode()))
    sys.stdout.flush()


def print_bytes(content: bytes) -> None:
    """Write bytes unchanged to a file or a pipe, and escaped to a terminal."""
    if sys.stdout.isatty():
        print_lines(content.decode(errors="backslashreplace").replace("\r\n", "\n"))
    else:
        sys.stdout.buffer.write(content)
    sys.stdout.flush()


def _escape_json(text: str) -> str:
    """Escape what JSON does not require to be escaped, but a terminal may obey."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )
