"""``onceward archive``: list, show, verify and restore archived payloads."""

from __future__ import annotations

import sys

import click
import uvloop

from onceward.cli._archive import (
    archive_options,
    event_json,
    file_json,
    open_ledger,
    operator_action,
    operator_options,
    parse_key,
    parse_week,
    print_facts,
    print_files,
)
from onceward.cli._options import print_bytes, print_json, print_line, report_errors
from onceward.cli._progress import show_progress
from onceward.errors import NotFound
from onceward.model.admin import OperatorAction
from onceward.model.archive import ArchiveItem, ArchiveQuery, EventKey, FoundEvent, Restored
from onceward.model.weeks import Week
from onceward.operate.archive_files import find_event, list_files, read_body, verify_files
from onceward.operate.restoring import restore_week


@click.group()
def archive() -> None:
    """List, show, verify and restore archived payloads."""


@archive.command()
@archive_options
def ls(database: str | None, archive: str | None, as_json: bool) -> None:
    """List the recorded files."""
    with report_errors():
        items = uvloop.run(_list(database, archive, ArchiveQuery()))
        if as_json:
            for item in items:
                print_json(file_json(item))
        elif items:
            print_files(items)
        else:
            print_line("No file is recorded.")


@archive.command()
@click.argument("target", metavar="WEEK|SOURCE:ID")
@click.option("--body", is_flag=True, help="Show the body too; it is audited.")
@operator_options
@archive_options
def show(
    target: str,
    body: bool,
    actor: str | None,
    reason: str | None,
    database: str | None,
    archive: str | None,
    as_json: bool,
) -> None:
    """Show the files of a week, or an archived event.

    A week is named by one of its days, such as 20260105. The body of an event is shown with --body,
    --actor and --reason: as it is, or in base64 with --json. Exits with 1 if a file that may have
    the event is damaged or missing.
    """
    week = Week.parse(target)
    if week is not None and body:
        raise click.UsageError("--body shows the body of one event: write SOURCE:ID, not a week.")
    action = operator_action(actor, reason) if body else None
    with report_errors():
        if week is not None:
            items = uvloop.run(_list(database, archive, ArchiveQuery(week=week)))
            if not items:
                raise NotFound(f"No file of the week {week} is recorded.")
            for item in items:
                print_json(file_json(item)) if as_json else print_facts(file_json(item))
            return
        key = parse_key(target)
        found = uvloop.run(_find(database, archive, key, action))
        _print_event(found, body=body, as_json=as_json)
    sys.exit(1 if found.damaged else 0)


@archive.command()
@click.argument("week")
@click.option("--event", metavar="SOURCE:ID", help="Restore only this event.")
@operator_options
@archive_options
def restore(
    week: str,
    event: str | None,
    actor: str | None,
    reason: str | None,
    database: str | None,
    archive: str | None,
    as_json: bool,
) -> None:
    """Put the payloads of a WEEK back into the ledger, with the rows of events that are gone.

    No job is created, and nothing is queued. WEEK is one of its days, such as 20260105. A file that
    is damaged or missing is passed over and listed, and the command exits with 1.
    """
    chosen, key = parse_week(week), parse_key(event) if event else None
    action = operator_action(actor, reason)
    with report_errors():
        restored = uvloop.run(_restore(database, archive, chosen, key, action))
        _print_restored(restored, chosen, as_json=as_json)
    sys.exit(1 if restored.damaged else 0)


@archive.command()
@click.argument("week", required=False)
@archive_options
def verify(week: str | None, database: str | None, archive: str | None, as_json: bool) -> None:
    """Read every recorded file, or those of a WEEK, and compare them with their records.

    Exits with 1 if a file is damaged or missing.
    """
    query = ArchiveQuery(week=parse_week(week) if week else None)
    with report_errors():
        faults = uvloop.run(_verify(database, archive, query, as_json=as_json))
    sys.exit(1 if faults else 0)


async def _list(
    database: str | None, archive: str | None, query: ArchiveQuery
) -> list[ArchiveItem]:
    async with open_ledger(database, archive) as ledger:
        return [item async for item in list_files(ledger.store, query)]


async def _find(
    database: str | None, archive: str | None, key: EventKey, action: OperatorAction | None
) -> FoundEvent:
    async with open_ledger(database, archive) as ledger:
        if action is None:
            return await find_event(ledger.store, ledger.archive(), key)
        return await read_body(ledger.store, ledger.archive(), key, action)


async def _restore(
    database: str | None,
    archive: str | None,
    week: Week,
    key: EventKey | None,
    action: OperatorAction,
) -> Restored:
    async with open_ledger(database, archive) as ledger:
        with show_progress(f"restoring {week}") as show_text:
            return await restore_week(
                ledger.store,
                ledger.archive(),
                week,
                action,
                key=key,
                progress=lambda restored: show_text(f"restoring {week}: {_counts(restored)}"),
            )


async def _verify(
    database: str | None, archive: str | None, query: ArchiveQuery, *, as_json: bool
) -> int:
    faults = 0
    async with open_ledger(database, archive) as ledger:
        with show_progress("verifying") as show_text:
            async for item, fault in verify_files(ledger.store, ledger.archive(), query):
                faults += fault is not None
                show_text(f"verified {item.path}")
                if as_json:
                    print_json({"path": item.path, "week": item.week.label, "fault": fault})
                else:
                    print_line(fault or f"{item.path}: {item.rows:,} events, as recorded")
    return faults


def _print_event(found: FoundEvent, *, body: bool, as_json: bool) -> None:
    for each in found.damaged:
        print_line(f"onceward: {each.fault}", err=True)
    facts = {"path": found.file.path, **event_json(found.event, body=body)}
    if as_json:
        print_json(facts)
        return
    if body:  # only the body, so that it can be piped
        print_bytes(found.event.body)
        return
    print_facts(facts)


def _print_restored(restored: Restored, week: Week, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "week": week.label,
                "payloads": restored.payloads,
                "events": restored.events,
                "present": restored.present,
                "skipped": restored.skipped_count,
                "skipped_events": [
                    {"id": each.id, "key": str(each.key), "reason": each.reason}
                    for each in restored.skipped
                ],
                "damaged_files": [
                    {"path": each.path, "fault": each.fault} for each in restored.damaged
                ],
                "audit_entry": restored.audit_entry and restored.audit_entry.id,
            }
        )
        return
    print_line(f"{week}: {_counts(restored)}")
    for each in restored.skipped:
        print_line(f"skipped {each.key} (id {each.id}): {each.reason}")
    if (hidden := restored.skipped_count - len(restored.skipped)) > 0:
        print_line(f"and {hidden:,} more were skipped")
    for damaged in restored.damaged:
        print_line(f"not restored: {damaged.fault}")


def _counts(restored: Restored) -> str:
    return (
        f"{restored.payloads:,} payloads restored, {restored.events:,} of them with their events; "
        f"{restored.present:,} were present, {restored.skipped_count:,} skipped"
    )
