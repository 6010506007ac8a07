"""What the commands have in common: options, the user's app, errors and logs."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
import msgspec

from onceward.errors import ConfigurationError, OncewardError
from onceward.inbox import Inbox
from onceward.runtime.redact import printable, redact

F = TypeVar("F", bound=Callable[..., Any])

_database_option = click.option(
    "--database", metavar="URL", help="Where the ledger is: sqlite:///file.db or postgresql://…"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
_weak_durability_option = click.option(
    "--allow-weak-durability",
    is_flag=True,
    default=None,
    help="Start although the database may lose what it acknowledged.",
)
_workers_option = click.option(
    "--workers", type=click.IntRange(min=0), help="Handlers that run at one time in this process."
)


def database_options(command: F) -> F:
    """The options that every command has."""
    return _database_option(json_option(command))


def service_options(command: F) -> F:
    """The options of commands that write to the ledger."""
    return database_options(_weak_durability_option(_workers_option(command)))


def drop_unset(**options: Any) -> dict[str, Any]:
    """The settings that were named on the command line."""
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn our own errors into a message and exit code 2, without a traceback."""
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
    """Find the Inbox in ``file.py``, ``file.py:name`` or ``module:name``."""
    location, _, name = app.partition(":")
    module = _load_file(Path(location)) if location.endswith(".py") else _load_module(location)
    if name:
        inbox = getattr(module, name, None)
        if not isinstance(inbox, Inbox):
            msg = f"{location} has no Inbox called {name!r}."
            raise ConfigurationError(msg)
        return inbox
    inboxes = {key: value for key, value in vars(module).items() if isinstance(value, Inbox)}
    if len(inboxes) != 1:
        names = ", ".join(inboxes) or "none"
        msg = f"{location} must have one Inbox; it has {names}. Name one: {location}:inbox"
        raise ConfigurationError(msg)
    return next(iter(inboxes.values()))


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        msg = f"There is no file {path}."
        raise ConfigurationError(msg)
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    msg = f"There is no module {name!r}. Write file.py, file.py:inbox or module:inbox."
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(msg)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(msg) from error
        raise


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: Mapping[str, Any] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({"error": self.formatException(record.exc_info)} if record.exc_info else {}),
        }
        return msgspec.json.encode(entry).decode()


def start_logging(*, as_json: bool) -> None:
    """Send logs to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _JsonFormatter()
        if as_json
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # a line for each bad request is too many
    logging.getLogger("psycopg").setLevel(logging.ERROR)


def print_json(content: object) -> None:
    """Print one object on one line, at once."""
    click.echo(msgspec.json.encode(content).decode())
    sys.stdout.flush()
