"""The command line, one file per command."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import click

from onceward.version import __version__

COMMANDS: Final = {
    "serve": "Receive webhooks and run handlers.",
    "work": "Run handlers without receiving.",
    "migrate": "Apply pending database migrations.",
    "maintain": "Create partitions ahead, and delete what is older than the settings of APP allow.",
    "sources": "List the presets, or show one in detail.",
    "send": "Send a signed example event to a source.",
    "verify": "Explain why a captured request does or does not verify.",
    "secrets": "Show the secrets that providers sent.",
    "archive": "List, show, verify and restore archived payloads.",
}
"""Each command and the first sentence of its help, for a list that imports none of them."""


class _Commands(click.Group):
    """A group that imports the file of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        with _without_gc():
            module = import_module(f"onceward.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@contextmanager
def _without_gc() -> Iterator[None]:
    """Look for no garbage meanwhile: imports leave none, and the search takes 15 ms."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="onceward")
def main() -> None:
    """Onceward, a webhook inbox: record each event once, apply each effect once."""
