"""``onceward sources``: list the presets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from onceward.cli._console import make_console
from onceward.cli._options import json_option, print_json, report_errors
from onceward.sources.presets import PRESETS, Preset, find_preset
from onceward.sources.presets.challenges import META
from onceward.sources.presets.preset import DEFAULT_SCHEME
from onceward.sources.schemes import Coverage, Scheme, UrlCoverage
from onceward.sources.schemes.times import describe_window


@click.command()
@click.argument("name", required=False)
@json_option
def sources(name: str | None, as_json: bool) -> None:
    """List the presets, or show one in detail."""
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
    """Return a preset's properties, for programs."""
    return {
        "name": preset.name,
        "title": preset.title,
        "schemes": {
            name: {
                "summary": scheme.summary,
                "tolerance_seconds": scheme.tolerance_seconds,
                "needs_url": scheme.needs_url,
                "covers": _describe_coverage(preset.coverage(scheme)),
                "uncovered": preset.identity_selectors.uncovered(preset.coverage(scheme)),
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


def _describe_coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "body": coverage.body.value,
        "url": coverage.url.value,
        "values": list(coverage.values),
        "time": coverage.has_time,
    }


def _print_table(presets: list[Preset]) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("preset", no_wrap=True)
    table.add_column("provider", no_wrap=True, max_width=24, overflow="ellipsis")
    table.add_column("signature")  # the only column that rich may shrink
    for preset in sorted(presets, key=attrgetter("name")):
        summary = preset.scheme().summary.replace("`", "")
        table.add_row(preset.name, preset.title, Text(summary, no_wrap=True, overflow="ellipsis"))
    console = make_console(highlight=True)
    console.print(table)
    console.print(f"\n{len(presets)} presets. To see one in detail: onceward sources stripe")


def _print_details(preset: Preset) -> None:
    details = Table(box=None, show_header=False)
    details.add_column(style="bold")
    details.add_column(overflow="fold")
    for name, value in _details(preset):
        details.add_row(name, value)
    make_console(highlight=True).print(details)


def _details(preset: Preset) -> Iterator[tuple[str, str]]:
    yield "provider", preset.title
    for name, scheme in preset.named_schemes.items():
        label = "scheme" if name == DEFAULT_SCHEME else f"scheme {name}"
        yield label, scheme.summary.replace("`", "")
        yield from (("", caveat) for caveat in _scheme_caveats(preset, scheme))
    yield from _selector_rows("id", preset.ids)
    yield from _selector_rows("type", preset.types)
    yield from _selector_rows("reference", (preset.reference,) if preset.reference else ())
    if preset.events:
        yield "events", f"{preset.events}: each item is recorded as an event"
    if preset.challenge:
        yield "challenge", "answered automatically"
    if preset.volatile_fields:
        names = ", ".join(preset.volatile_fields)
        yield "volatile fields", f"{names}: may change between deliveries without a conflict"
    yield "retries", retry_window(preset.auto_retry_hours)
    yield "manual resend", resend_window(preset.manual_resend_days)
    if preset.note:
        yield "note", preset.note
    yield "usage", f'inbox.source("{preset.name}", {", ".join(_source_arguments(preset))})'


def _selector_rows(name: str, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a row per part, with spaces around ``|`` so that long selectors wrap there."""
    first, *others = parts or ("none",)
    yield name, first.replace("|", " | ")
    for other in others:
        yield "", f"+ {other.replace('|', ' | ')}"


def _scheme_caveats(preset: Preset, scheme: Scheme) -> Iterator[str]:
    if scheme.tolerance_seconds is not None:
        yield f"accepts timestamps up to {describe_window(scheme.tolerance_seconds)} off"
    if _signs_url(scheme):
        yield "signs the public URL: set url= to the one that you registered"
    coverage = preset.coverage(scheme)
    if not coverage.is_whole:
        yield f"covers {scheme.coverage.summary.replace('`', '')}, and not the whole body"
    elif uncovered := preset.identity_selectors.uncovered(coverage):
        yield f"does not cover every value of: {', '.join(uncovered)}"
    if preset.flags_duplicates(scheme):
        yield "flags the same content under another id"


def retry_window(hours: float | None) -> str:
    """Return how long a provider retries by itself, for people."""
    if hours is None:
        return "not documented"
    if hours == 0:
        return "none"
    return f"{hours:g} h" if hours >= 1 else f"{round(hours * 60)} min"


def resend_window(days: float | None) -> str:
    """Return how long a user can have an event resent, for people."""
    return "not documented" if days is None else f"{days:g} days"


def _source_arguments(preset: Preset) -> Iterator[str]:
    """Yield the arguments that a source of this preset requires."""
    provisions_secret = preset.challenge is not None and preset.challenge.provisions_secret
    if not provisions_secret:
        yield 'secrets=["…"]'
    if provisions_secret or preset.challenge is META:
        yield 'verify_token="…"'
    if _signs_url(preset.scheme()):
        yield 'url="https://…"'


def _signs_url(scheme: Scheme) -> bool:
    return scheme.coverage.url is not UrlCoverage.NOTHING
