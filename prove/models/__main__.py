"""``python -m prove.models``: exit code 0 if the models hold and every rule is needed, else 1.

With ``--without`` or ``--with``, the code is 0 if the search found harm.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import click
import msgspec
from rich.console import Console

from prove.models.catalogue import PROTOCOLS, Configuration, Shown
from prove.models.check import Counterexample, check_models, exceed, name_of, remove
from prove.models.report import show_models, show_protocol, show_trace


@click.command()
@click.argument("protocol", type=click.Choice(list(PROTOCOLS)), required=False)
@click.option("--without", "rule", metavar="RULE", help="Remove one rule, and print the harm.")
@click.option("--with", "limit", metavar="LIMIT", help="Add a fault that no rule covers.")
@click.option("--long", "is_long", is_flag=True, help="Search larger models as well.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(
    *, protocol: str | None, rule: str | None, limit: str | None, is_long: bool, as_json: bool
) -> None:
    """Search the models of all protocols, or of one; or show the harm without one rule."""
    console = Console(highlight=False)
    if rule or limit:
        entry = _counterexample(protocol, rule, limit)
        if as_json:
            _print_json(asdict(entry))
        else:
            show_trace(entry, console)
        sys.exit(0 if entry.is_green else 1)
    chosen = {protocol: PROTOCOLS[protocol]} if protocol else PROTOCOLS
    result = check_models(is_long=is_long, protocols=chosen)
    if as_json:
        _print_json(result.as_json())
    else:
        if protocol:
            show_protocol(result.protocols[protocol], console)
        show_models(result, console)
    sys.exit(0 if result.is_green else 1)


def _counterexample(protocol: str | None, rule: str | None, limit: str | None) -> Counterexample:
    if protocol is None or (rule and limit):
        raise click.UsageError("Name one protocol, and one rule or one limit.")
    if rule:
        return _find("rule", rule, PROTOCOLS[protocol].rules, remove)
    return _find("limit", limit or "", PROTOCOLS[protocol].limits, exceed)


def _find(
    what: str,
    name: str,
    entries: Shown,
    run: Callable[[StrEnum, Configuration], Counterexample],
) -> Counterexample:
    wanted = name.lower().replace("_", "-")
    for entry, configuration in entries.items():
        if name_of(entry) == wanted:
            return run(entry, configuration)
    names = ", ".join(map(name_of, entries)) or "none"
    raise click.BadParameter(f"There is no {what} {name!r}. Choose one of: {names}")


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.encode(value).decode())


if __name__ == "__main__":
    main()
