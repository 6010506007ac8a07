"""``onceward migrate``: apply pending migrations."""

from __future__ import annotations

import click
import uvloop

from onceward.cli._loading import load_inbox
from onceward.cli._logging import LogFormat, log_option, start_logging
from onceward.cli._options import (
    database_options,
    drop_unset,
    print_json,
    report_errors,
)
from onceward.inbox import Inbox
from onceward.ports import Store


@click.command()
@click.argument("app", required=False)
@database_options
@log_option
def migrate(app: str | None, database: str | None, as_json: bool, log: LogFormat) -> None:
    """Apply pending database migrations.

    The database is that of APP, or --database.
    """
    start_logging(log)
    with report_errors():
        inbox = load_inbox(app) if app else Inbox()
        service = inbox.service(drop_unset(database_url=database))
        applied = uvloop.run(_migrate(service.store))
        url = service.database
        if as_json:
            print_json({"database": url, "applied": applied})
        else:
            click.echo(f"{url}: {', '.join(applied) or 'up to date'}")


async def _migrate(store: Store) -> list[str]:
    try:
        return await store.migrate()
    finally:
        await store.close()
