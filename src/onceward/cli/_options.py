"""Shared by the commands: options, errors and output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import msgspec

from onceward.cli._loading import AppFailed, user_frames
from onceward.errors import (
    ConfigurationError,
    OncewardError,
    PreparationFailed,
    StoreError,
    StoreUnavailable,
)
from onceward.runtime.redact import as_sentence, printable, redact
from onceward.service import DATABASE_PLACES

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
    except ConfigurationError as error:
        for fault in error.faults:
            click.echo(f"onceward: {printable(fault)}", err=True)
        sys.exit(2)
    except AppFailed as error:
        for line in filter(None, (str(error), error.hint)):
            click.echo(f"onceward: {line}", err=True)
        click.echo(error.frames, err=True, nl=False)
        sys.exit(2)
    except PreparationFailed as error:
        click.echo(f"onceward: {printable(str(error))}", err=True)
        if error.__cause__ is not None:
            click.echo(user_frames(error.__cause__), err=True, nl=False)
        sys.exit(2)
    except StoreError as error:
        reason = as_sentence(redact(str(error)))
        click.echo(f"onceward: {reason} {_database_advice(error)}", err=True)
        sys.exit(2)
    except OncewardError as error:
        click.echo(f"onceward: {redact(' '.join(str(error).split()))}", err=True)
        sys.exit(2)


def _database_advice(error: StoreError) -> str:
    if isinstance(error, StoreUnavailable):
        return f"Check the database: {DATABASE_PLACES}."
    if "permission denied" in str(error):
        return "Grant the role what docs/install.md lists for PostgreSQL."
    return "Check what else uses this database, and `onceward migrate`."


def print_json(content: object) -> None:
    """Print one object on one line, and flush."""
    click.echo(msgspec.json.encode(content).decode())
    sys.stdout.flush()
