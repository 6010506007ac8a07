"""``onceward serve``: receive, work and answer operators, in one process."""

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
from onceward.http.auth import is_loopback
from onceward.http.server.server import listen


@click.command()
@click.argument("app")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=3000, show_default=True, help="Port to listen on.")
@click.option("--dev", is_flag=True, help="Open everything to this machine; never in production.")
@serving
def serve(
    app: str,
    host: str,
    port: int,
    dev: bool,
    database: str | None,
    workers: int | None,
    allow_weak_durability: bool | None,
    as_json: bool,
) -> None:
    """Run the inbox of APP (file.py, file.py:inbox or module:inbox): receive, and work.

    With --workers 0 it only receives.
    """
    start_logging(as_json=as_json)
    with report_errors():
        if dev and not is_loopback(host):
            msg = f"--dev opens everything, so it listens on loopback only, and {host} is not."
            raise ConfigurationError(msg)
        settings = given(
            database_url=database, workers=workers, allow_weak_durability=allow_weak_durability
        )
        service = load_inbox(app).service(settings, dev=dev)
        listener = listen(host, port)
        port = listener.getsockname()[1]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

        def started(token: str | None) -> None:
            if as_json:
                print_json(banner.facts(service, address, token))
            else:
                banner.show(service, address, token)

        uvloop.run(run(service, listener, started))
