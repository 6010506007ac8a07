"""``onceward secrets``: what senders handed over, for the person who has to confirm it."""

from __future__ import annotations

import click
import uvloop
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceward.cli.options import common, given, load_inbox, print_json, start_logging, told
from onceward.inbox import Inbox
from onceward.model import LearnedSecret
from onceward.ports import Store


@click.command()
@click.argument("app", required=False)
@common
def secrets(app: str | None, database: str | None, as_json: bool) -> None:
    """Show the secrets that Asana and Notion handed over: of APP, or of --database."""
    start_logging(as_json=as_json)
    with told():
        inbox = load_inbox(app) if app else Inbox()
        learned = uvloop.run(_learned(inbox.service(given(database_url=database)).store))
        if as_json:
            for one in learned:
                secret = one.secret.decode("latin-1")
                print_json({"source": one.source, "secret": secret, "learned_at": one.learned_at})
        else:
            _show(learned)


async def _learned(store: Store) -> list[LearnedSecret]:
    try:
        await store.open(serving=False)
        return await store.learned_secrets()
    finally:
        await store.close()


def _show(learned: list[LearnedSecret]) -> None:
    table = Table(box=None, header_style="bold")
    for name in ("source", "when", "secret"):
        table.add_column(name, overflow="fold")
    for one in learned:
        when = f"{one.learned_at:%Y-%m-%d %H:%M} UTC"
        table.add_row(one.source, when, Text(one.secret.decode("latin-1")))
    Console().print(table if learned else "No sender has handed over a secret.")
