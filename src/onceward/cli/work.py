"""``onceward work``: run handlers, and receive nothing."""

from __future__ import annotations

import click
import uvloop

from onceward.cli import _banner as banner
from onceward.cli._options import (
    given,
    load_inbox,
    print_json,
    report_errors,
    serving,
    start_logging,
)
from onceward.cli._running import run
from onceward.errors import ConfigurationError


@click.command()
@click.argument("app")
@serving
def work(
    app: str,
    database: str | None,
    workers: int | None,
    allow_weak_durability: bool | None,
    as_json: bool,
) -> None:
    """Run the handlers of APP (file.py, file.py:inbox or module:inbox), and receive nothing.

    As many of these as you like may work on one PostgreSQL database.
    """
    start_logging(as_json=as_json)
    with report_errors():
        settings = given(
            database_url=database, workers=workers, allow_weak_durability=allow_weak_durability
        )
        service = load_inbox(app).service(settings)
        if not service.handlers or service.settings.workers == 0:
            msg = f"{app} gives nothing to do: it has no handlers, or --workers is 0."
            raise ConfigurationError(msg)

        def started(_: str | None) -> None:
            if as_json:
                print_json(banner.facts(service, None, None))
            else:
                banner.show(service, None, None)

        uvloop.run(run(service, None, started))
