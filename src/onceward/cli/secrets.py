"""``onceward secrets``: what senders handed over, for the person who has to confirm it."""

from __future__ import annotations

import click
import uvloop

from onceward.cli._options import (
    common,
    given,
    load_inbox,
    print_json,
    report_errors,
    start_logging,
)
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.model.admin import ProvisionedSecret
from onceward.ports import Store


@click.command()
@click.argument("app", required=False)
@click.option("--forget", metavar="SOURCE", help="Forget those of this source first.")
@common
def secrets(app: str | None, forget: str | None, database: str | None, as_json: bool) -> None:
    """Show the secrets that Asana and Notion handed over: of APP, or of --database."""
    start_logging(as_json=as_json)
    with report_errors():
        inbox = load_inbox(app) if app else Inbox()
        store = inbox.service(given(database_url=database)).store
        learned = uvloop.run(_learned(store, forget))
        if as_json:
            for one in learned:
                secret = one.secret.decode("latin-1")
                print_json(
                    {"source": one.source, "secret": secret, "learned_at": one.provisioned_at}
                )
        else:
            _show(learned)


async def _learned(store: Store, forget: str | None) -> list[ProvisionedSecret]:
    try:
        await store.open(serving=False)
        if forget is not None and not await store.delete_secrets(forget):
            raise ConfigurationError(f"no sender has handed over a secret to source {forget!r}")
        return await store.provisioned_secrets()
    finally:
        await store.close()


def _show(learned: list[ProvisionedSecret]) -> None:
    if not learned:
        click.echo("No sender has handed over a secret.")
    for one in learned:  # a line each, never broken: they are there to be copied
        when = f"{one.provisioned_at:%Y-%m-%d %H:%M:%S} UTC"
        click.echo(f"{one.source}  {when}  {one.secret.decode('latin-1')}")
