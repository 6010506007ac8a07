"""Shared by the commands: options, loading the user's app, errors and output."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import click
import msgspec

from onceward.errors import ConfigurationError, OncewardError
from onceward.inbox import Inbox
from onceward.runtime.redact import printable, redact

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
    except OncewardError as error:
        click.echo(f"onceward: {redact(' '.join(str(error).split()))}", err=True)
        sys.exit(2)


def load_inbox(app: str) -> Inbox:
    """Import ``file.py``, ``file.py:name`` or ``module:name`` and return its Inbox.

    Raises ConfigurationError if there is no such Inbox, or several and no name chooses one.
    """
    location, _, name = app.partition(":")
    module = _load_file(Path(location)) if location.endswith(".py") else _load_module(location)
    if name:
        inbox = getattr(module, name, None)
        if not isinstance(inbox, Inbox):
            msg = f"{location} has no Inbox named {name!r}"
            raise ConfigurationError(msg)
        return inbox
    inboxes = {key: value for key, value in vars(module).items() if isinstance(value, Inbox)}
    if not inboxes:
        raise ConfigurationError(f"{location} defines no Inbox")
    if len(inboxes) > 1:
        names, first = ", ".join(inboxes), next(iter(inboxes))
        msg = f"{location} defines several inboxes: {names}; choose one, such as {location}:{first}"
        raise ConfigurationError(msg)
    return next(iter(inboxes.values()))


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"no such file: {path}")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    msg = f"no such module: {name!r}; use file.py, file.py:inbox or module:inbox"
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(msg)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(msg) from error
        raise


def print_json(content: object) -> None:
    """Print one object on one line, and flush."""
    click.echo(msgspec.json.encode(content).decode())
    sys.stdout.flush()


def redact_url(url: str) -> str:
    """Return a database URL without its password and query."""
    if url.startswith("sqlite:"):
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}{colon}{'…' if colon else ''}{at}{host}"
    return urlunsplit(parts._replace(netloc=netloc, query="", fragment=""))
