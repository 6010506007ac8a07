"""``onceward serve``: receive webhooks, run handlers and serve the admin API in one process."""

from __future__ import annotations

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
from onceward.http.addresses import is_loopback
from onceward.http.receive_app import INGEST
from onceward.http.server.server import listen

MAX_PORT = 65535


@click.command()
@click.argument("app")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=3000, show_default=True, help="Port to listen on.")
@click.option(
    "--dev",
    is_flag=True,
    help=f"Open the admin API and {INGEST} to this machine. Not for production.",
)
@click.option("--access-log", is_flag=True, default=None, help="Log a line for each request.")
@service_options
@log_options
def serve(
    app: str,
    host: str,
    port: int,
    dev: bool,
    access_log: bool | None,
    database: str | None,
    workers: int | None,
    allow_weak_durability: bool | None,
    as_json: bool,
) -> None:
    """Receive webhooks and run handlers.

    APP is file.py, file.py:inbox or module:inbox. With --workers 0, only handlers of
    inline sources run.
    """
    with report_errors():
        if dev and not is_loopback(host):
            msg = f"--dev opens the admin API, so it needs a loopback address; {host!r} is not one"
            raise ConfigurationError(msg)
        settings = drop_unset(
            database_url=database,
            workers=workers,
            allow_weak_durability=allow_weak_durability,
            access_log=access_log,
        )
        if not 0 <= port <= MAX_PORT:
            raise ConfigurationError(f"--port {port} is out of range; use 0 to {MAX_PORT}")
        service = load_inbox(app).service(settings, dev=dev)
        listener = listen(host, port)
        port = listener.getsockname()[1]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

        def on_started(token: str | None) -> None:
            announce(service, app, address, token, as_json=as_json)

        run_service(service, listener, on_started)
