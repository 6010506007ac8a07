"""The command line, one file per command."""

from __future__ import annotations

import click

from onceward.cli.archive import archive
from onceward.cli.maintain import maintain
from onceward.cli.migrate import migrate
from onceward.cli.secrets import secrets
from onceward.cli.send import send
from onceward.cli.serve import serve
from onceward.cli.sources import sources
from onceward.cli.verify import verify
from onceward.cli.work import work
from onceward.version import __version__


@click.group()
@click.version_option(__version__, prog_name="onceward")
def main() -> None:
    """Onceward, a webhook inbox: record each event once, apply each effect once."""


main.add_command(serve)
main.add_command(work)
main.add_command(migrate)
main.add_command(maintain)
main.add_command(sources)
main.add_command(send)
main.add_command(verify)
main.add_command(secrets)
main.add_command(archive)
