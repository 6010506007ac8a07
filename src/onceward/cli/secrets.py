"""``onceward secrets``: show or delete the secrets that providers sent."""

from __future__ import annotations

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
from onceward.model.admin import ProvisionedSecret
from onceward.ports import Store


@click.command()
@click.argument("app", required=False)
@click.option(
    "--forget", "deleted_source", metavar="SOURCE", help="Delete the secrets of this source first."
)
@database_options
@log_options
def secrets(
    app: str | None,
    deleted_source: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Show the secrets that providers sent.

    Asana and Notion send the secret in their first request. The database is that of APP, or
    --database.
    """
    with report_errors():
        inbox = load_inbox(app) if app else Inbox()
        store = inbox.service(drop_unset(database_url=database)).store
        provisioned = uvloop.run(_load_secrets(store, deleted_source))
        if as_json:
            for entry in provisioned:
                print_json(
                    {
                        "source": entry.source,
                        "secret": entry.secret.decode("latin-1"),
                        "provisioned_at": entry.provisioned_at,
                    }
                )
        else:
            _print_secrets(provisioned)


async def _load_secrets(store: Store, deleted_source: str | None) -> list[ProvisionedSecret]:
    try:
        await store.open(serving=False)
        if deleted_source is not None and not await store.delete_secrets(deleted_source):
            raise ConfigurationError(f"no secret is stored for source {deleted_source!r}")
        return await store.provisioned_secrets()
    finally:
        await store.close()


def _print_secrets(provisioned: list[ProvisionedSecret]) -> None:
    if not provisioned:
        print_line("No provider has sent a secret.")
    for entry in provisioned:  # not a table: a wrapped secret cannot be copied
        when = f"{entry.provisioned_at:%Y-%m-%d %H:%M:%S} UTC"
        print_line(f"{entry.source}  {when}  {entry.secret.decode('latin-1')}")
