"""``onceward work``: run handlers without receiving."""

from __future__ import annotations

import logging

import click

from onceward.cli._announcement import announce
from onceward.cli._loading import load_inbox
from onceward.cli._logging import log_options
from onceward.cli._options import (
    drop_unset,
    report_errors,
    service_options,
)
from onceward.cli._running import run_service
from onceward.errors import ConfigurationError
from onceward.service import Service

_log = logging.getLogger("onceward.workers")


@click.command()
@click.argument("app")
@service_options
@log_options
def work(
    app: str,
    database: str | None,
    workers: int | None,
    allow_weak_durability: bool | None,
    as_json: bool,
) -> None:
    """Run handlers without receiving.

    APP is file.py, file.py:inbox or module:inbox. Any number of these processes can share one
    PostgreSQL database.
    """
    with report_errors():
        settings = drop_unset(
            database_url=database, workers=workers, allow_weak_durability=allow_weak_durability
        )
        service = load_inbox(app).service(settings)
        _check_work(service, app)

        def on_started(_: str | None) -> None:
            _warn_of_sqlite(service, app)
            announce(service, app, None, None, as_json=as_json)

        run_service(service, None, on_started)


def _check_work(service: Service, app: str) -> None:
    """Raise ConfigurationError if there is nothing to run."""
    if not service.handlers:
        fix = f"import the modules that define them in {app}"
        raise ConfigurationError(f"{app} has nothing to run: it has no handlers ({fix})")
    if service.settings.workers == 0:
        message = f"{app} has nothing to run: workers is 0; set --workers to 1 or more"
        raise ConfigurationError(message)


def _warn_of_sqlite(service: Service, app: str) -> None:
    """Warn that nothing can receive, if the database supports one process only."""
    if service.settings.uses_sqlite:
        note = service.database_note or f"The database is {service.database}"
        _log.warning(
            "SQLite supports one process: nothing can receive while this worker runs. %s. "
            "Use the PostgreSQL database of the app that receives, or run `onceward serve %s`.",
            note,
            app,
        )
