"""``onceward work``: run handlers without receiving."""

from __future__ import annotations

import click
import uvloop

from onceward.cli._banner import announce
from onceward.cli._loading import load_inbox
from onceward.cli._logging import LogFormat, log_option, start_logging
from onceward.cli._options import (
    drop_unset,
    report_errors,
    service_options,
)
from onceward.cli._running import run_service
from onceward.errors import ConfigurationError


@click.command()
@click.argument("app")
@service_options
@log_option
def work(
    app: str,
    database: str | None,
    workers: int | None,
    allow_weak_durability: bool | None,
    as_json: bool,
    log: LogFormat,
) -> None:
    """Run handlers without receiving.

    APP is file.py, file.py:inbox or module:inbox. Any number of these processes can share one
    PostgreSQL database.
    """
    start_logging(log)
    with report_errors():
        settings = drop_unset(
            database_url=database, workers=workers, allow_weak_durability=allow_weak_durability
        )
        service = load_inbox(app).service(settings)
        if not service.handlers or service.settings.workers == 0:
            message = f"{app} has nothing to run: it has no handlers, or --workers is 0"
            raise ConfigurationError(message)

        def on_started(_: str | None) -> None:
            announce(service, app, None, None, as_json=as_json)

        uvloop.run(run_service(service, None, on_started))
