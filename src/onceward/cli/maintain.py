"""``onceward maintain``: create partitions ahead, and delete what was kept long enough."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

import click
import uvloop

from onceward.cli._loading import load_inbox
from onceward.cli._logging import log_options
from onceward.cli._options import (
    database_options,
    drop_unset,
    print_json,
    print_line,
    report_errors,
)
from onceward.cli._progress import StepProgress, sentence
from onceward.operate.maintenance import Step
from onceward.service import Service


@click.command()
@click.argument("app")
@click.option(
    "--dry-run", is_flag=True, help="Print what would be dropped and deleted; change nothing."
)
@database_options
@log_options
def maintain(app: str, dry_run: bool, database: str | None, as_json: bool) -> None:
    """Create partitions ahead, and delete what is older than the settings of APP allow.

    `serve` and `work` do the same every hour, in one process of all, if their role owns the tables.
    """
    with report_errors():
        service = load_inbox(app).service(drop_unset(database_url=database))
        with StepProgress() as progress:
            reason = uvloop.run(_maintain(service, progress, dry_run=dry_run))
        if as_json:
            for step in progress.steps:
                print_json(asdict(step) | {"dry_run": dry_run})
            if reason:
                print_json({"action": "none", "reason": reason})
        else:
            _print_steps(progress.steps, service.database, reason, dry_run=dry_run)
        if service.maintenance.needs_attention:
            sys.exit(2)


def _print_steps(steps: Sequence[Step], database: str, reason: str, *, dry_run: bool) -> None:
    for step in steps:
        print_line(("would " if dry_run else "") + sentence(step))
    if reason:
        print_line(f"Not done: {reason}.", err=True)
    elif not steps:
        print_line(f"{database}: nothing to do")


async def _maintain(service: Service, progress: StepProgress, *, dry_run: bool) -> str:
    """Do or plan the maintenance. Return why it was not done, or an empty text."""
    try:
        await service.store.open(serving=False)
        if not dry_run:
            return await service.maintenance.run(progress.report)
        async for step in service.maintenance.plan():
            progress.report(step)
        return ""
    finally:
        await service.store.close()
