"""``onceward migrate``: apply pending migrations."""

from __future__ import annotations

from typing import Final

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
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.ports import Store

# The default database would be created in the current folder, beside the one of the app.
NO_DATABASE: Final = (
    "Name the app or the database: `onceward migrate app.py`, --database URL, or "
    "ONCEWARD_DATABASE_URL (DATABASE_URL is not read)."
)


@click.command()
@click.argument("app", required=False)
@database_options
@log_options
def migrate(app: str | None, database: str | None, as_json: bool) -> None:
    """Apply pending database migrations.

    The database is --database, that of APP, or ONCEWARD_DATABASE_URL: one of them is needed.
    """
    with report_errors():
        inbox = load_inbox(app) if app else Inbox()
        service = inbox.service(drop_unset(database_url=database))
        if app is None and service.database_note:
            raise ConfigurationError(NO_DATABASE)
        applied = uvloop.run(_migrate(service.store))
        url = service.database
        if as_json:
            print_json({"database": url, "applied": applied})
        else:
            print_line(f"{url}: {', '.join(applied) or 'up to date'}")


async def _migrate(store: Store) -> list[str]:
    try:
        return await store.migrate()
    finally:
        await store.close()
