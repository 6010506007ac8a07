"""Shared by the commands of ``onceward archive``: options, the ledger and the archive, output."""

from __future__ import annotations

import base64
import os
import pwd
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from msgspec.structs import asdict
from rich.table import Table

from onceward.cli._console import make_console
from onceward.cli._logging import log_options
from onceward.cli._options import database_options, drop_unset, print_line
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.model.admin import OperatorAction
from onceward.model.archive import ArchivedEvent, ArchiveItem, EventKey
from onceward.model.events import invalid_text_reason
from onceward.model.weeks import Week
from onceward.ports import Store
from onceward.ports.archive import PayloadArchive

F = TypeVar("F", bound=Callable[..., Any])

NO_DATABASE: Final = (
    "Name the database: --database URL, or ONCEWARD_DATABASE_URL (DATABASE_URL is not read)."
)
NO_ARCHIVE: Final = (
    "Name the archive: --archive s3://bucket/prefix or file:///folder, or ONCEWARD_ARCHIVE."
)

archive_option = click.option(
    "--archive", metavar="URL", help="The archive: s3://bucket/prefix or file:///folder."
)
actor_options: Final = (
    click.option("--actor", metavar="NAME", help="Who does it, for the audit trail."),
    click.option("--reason", metavar="TEXT", help="Why, for the audit trail."),
)


def archive_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that reads files."""
    return database_options(archive_option(log_options(command)))


def operator_options(command: F) -> F:
    """Add --actor and --reason."""
    for option in reversed(actor_options):
        command = option(command)
    return command


@dataclass(frozen=True)
class OpenLedger:
    """An open ledger, and the location of its archive."""

    store: Store
    find_archive: Callable[[], PayloadArchive | None]

    def archive(self) -> PayloadArchive:
        """Return the archive. Raise ConfigurationError if none is named."""
        archive = self.find_archive()
        if archive is None:
            raise ConfigurationError(NO_ARCHIVE)
        return archive


@asynccontextmanager
async def open_ledger(database: str | None, archive: str | None) -> AsyncIterator[OpenLedger]:
    """Open the ledger that the options or the environment name."""
    service = Inbox().service(drop_unset(database_url=database, archive=archive))
    if service.database_note:
        raise ConfigurationError(NO_DATABASE)
    try:
        await service.store.open(serving=False)
        yield OpenLedger(service.store, service.archive)
    finally:
        await service.store.close()


def operator_action(actor: str | None, reason: str | None) -> OperatorAction:
    """Return who acts and why. Raise UsageError if one of them is missing or cannot be stored."""
    given = {"--actor": (actor or "").strip(), "--reason": (reason or "").strip()}
    if missing := [name for name, text in given.items() if not text]:
        raise click.UsageError(f"{' and '.join(missing)} must be given: the action is audited.")
    for name, text in given.items():
        if fault := invalid_text_reason(text):
            raise click.UsageError(f"{name} {fault}.")
    return OperatorAction(given["--actor"], _user(), given["--reason"])


def _user() -> str:
    """Return the user of the process, as audit entries name it."""
    try:
        return f"os:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"os:{os.getuid()}"


def parse_week(text: str) -> Week:
    """Return a week. Raise BadParameter."""
    week = Week.parse(text)
    if week is None:
        raise click.BadParameter(f"{text!r} is no week: write one of its days, such as 20260105.")
    return week


def parse_key(text: str) -> EventKey:
    """Return the key of an event. Raise BadParameter."""
    source, separator, event_id = text.partition(":")
    if not (source and separator and event_id):
        raise click.BadParameter(f"{text!r} is no event: write SOURCE:ID, such as stripe:evt_1.")
    for part in (source, event_id):
        if fault := invalid_text_reason(part):
            raise click.BadParameter(f"{text!r} is no event: {part!r} {fault}.")
    return EventKey(source, event_id)


def file_json(item: ArchiveItem) -> dict[str, Any]:
    """Return a recorded file for JSON."""
    row = asdict(item)
    hashes = {name: row[name].hex() for name in ("sha256", "content_sha256")}
    return {**row, "week": item.week.label, **hashes}


def event_json(event: ArchivedEvent, *, body: bool) -> dict[str, Any]:
    """Return an archived event for JSON; the body in base64, if it is asked for."""
    row = asdict(event)
    row |= {"body_sha256": event.body_sha256.hex(), "headers": event.headers.decode("latin-1")}
    row["body_bytes"] = len(event.body)
    row["body"] = base64.b64encode(event.body).decode() if body else None
    return row if body else {name: value for name, value in row.items() if name != "body"}


def print_files(items: list[ArchiveItem]) -> None:
    """Print recorded files as a table."""
    table = Table("week", "part", "events", "bytes", "archived", "verified", "restored")
    for item in items:
        times = (item.archived_at, item.verified_at, item.restored_at)
        table.add_row(
            item.week.label,
            str(item.part),
            f"{item.rows:,}",
            f"{item.file_bytes:,}",
            *("" if time is None else f"{time:%Y-%m-%d}" for time in times),
        )
    make_console().print(table)


def print_facts(facts: dict[str, Any]) -> None:
    """Print a line for each fact: a wrapped path or hash could not be copied."""
    width = max(map(len, facts))
    for name, value in facts.items():
        print_line(f"{name:<{width}}  {'' if value is None else value}".rstrip())
