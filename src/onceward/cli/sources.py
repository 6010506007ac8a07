"""``onceward sources``: the senders that are known by name."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from onceward.cli._options import json_option, print_json, report_errors
from onceward.sources.presets import PRESETS, Preset, find_preset
from onceward.sources.presets.challenges import META
from onceward.sources.schemes import Token


@click.command()
@click.argument("name", required=False)
@json_option
def sources(name: str | None, as_json: bool) -> None:
    """List the senders that are known by name, or tell all that is known of one."""
    with report_errors():
        chosen = list(PRESETS.values()) if name is None else [find_preset(name)]
        if as_json:
            for preset in chosen:
                print_json(describe_preset(preset))
        elif name is None:
            _print_table(chosen)
        else:
            _print_details(chosen[0])


def describe_preset(preset: Preset) -> dict[str, Any]:
    """What is known of a sender."""
    return {
        "name": preset.name,
        "title": preset.title,
        "schemes": {
            name: {
                "summary": scheme.summary,
                "tolerance_seconds": scheme.tolerance_seconds,
                "needs_url": scheme.needs_url,
                "covers_body": scheme.covers_body,
            }
            for name, scheme in preset.named_schemes.items()
        },
        "id": list(preset.ids),
        "type": list(preset.types),
        "reference": preset.reference,
        "events": preset.events,
        "form_field": preset.form_field,
        "has_challenge": preset.challenge is not None,
        "volatile_fields": list(preset.volatile_fields),
        "auto_retry_hours": preset.auto_retry_hours,
        "manual_resend_days": preset.manual_resend_days,
        "note": preset.note,
    }


def _print_table(presets: list[Preset]) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("name", no_wrap=True, min_width=max(len(preset.name) for preset in presets))
    table.add_column("sender", no_wrap=True, min_width=18, max_width=24, overflow="ellipsis")
    table.add_column("how it proves itself", no_wrap=True, overflow="ellipsis")
    for preset in sorted(presets, key=attrgetter("name")):
        table.add_row(preset.name, preset.title, preset.scheme().summary.replace("`", ""))
    console = Console()
    console.print(table)
    console.print(f"\n{len(presets)} presets. All that is known of one: onceward sources stripe")


def _print_details(preset: Preset) -> None:
    details = Table(box=None, show_header=False)
    details.add_column(style="bold")
    details.add_column(overflow="fold")
    details.add_row("sender", preset.title)
    for name, scheme in preset.named_schemes.items():
        details.add_row(f"scheme {name}", scheme.summary.replace("`", ""))
        if scheme.tolerance_seconds is not None:
            details.add_row("", f"its time may be {scheme.tolerance_seconds} s off")
        if scheme.needs_url and not isinstance(scheme, Token):
            details.add_row("", "the public URL is signed: give url= where a proxy changes it")
        if not scheme.covers_body:
            details.add_row("", "a body that was changed on its way is not found out")
    details.add_row("id", " + ".join(preset.ids))
    details.add_row("type", " . ".join(preset.types) or "none")
    details.add_row("reference", preset.reference or "none")
    if preset.events:
        details.add_row("several events", f"in {preset.events}, each recorded as one of its own")
    if preset.challenge:
        details.add_row("asks first", "and is answered")
    if preset.volatile_fields:
        details.add_row(
            "volatile_fields", f"{', '.join(preset.volatile_fields)}: these make no conflict"
        )
    hours, days = preset.auto_retry_hours, preset.manual_resend_days
    details.add_row(
        "resends for", "it does not say" if hours is None else f"{hours:g} h, by itself"
    )
    details.add_row("", "it does not say, by hand" if days is None else f"{days:g} days, by hand")
    if preset.note:
        details.add_row("note", preset.note)
    details.add_row("use", f'inbox.source("{preset.name}", {", ".join(_source_arguments(preset))})')
    Console().print(details)


def _source_arguments(preset: Preset) -> Iterator[str]:
    """What a source of this preset is given."""
    provisions_secret = preset.challenge is not None and preset.challenge.provisions_secret
    if not provisions_secret:
        yield 'secrets=["…"]'
    if provisions_secret or preset.challenge is META:
        yield 'verify_token="…"'
    if preset.scheme().needs_url and not isinstance(preset.scheme(), Token):
        yield 'url="https://…"'
