"""The startup banner: the address, the sources and handlers, and commands to try first."""

from __future__ import annotations

import shlex
from typing import Final

import msgspec
from rich.text import Text

from onceward.cli._console import escaped_text, make_console
from onceward.cli._examples import example_request
from onceward.cli._sample_payload import sample_payload, with_members
from onceward.cli._sender import needs_private_key
from onceward.errors import ConfigurationError, RequestRefused
from onceward.http.admin_app import ADMIN
from onceward.http.receive_app import INGEST, WEBHOOKS
from onceward.model.events import INGEST_SOURCE
from onceward.model.jobs import Route
from onceward.operate.filters import LISTS
from onceward.service import Service
from onceward.sources.event_reader import make_event_reader
from onceward.sources.presets import Preset
from onceward.sources.source import Source
from onceward.version import __version__
from onceward.work.definition.filters import filter_members, filter_text, passes
from onceward.work.definition.handlers import Handler
from onceward.work.payloads.payload import decode

TOKEN_VARIABLE: Final = "ONCEWARD_TOKEN"  # noqa: S105 - the name of a variable


def print_banner(service: Service, app: str, address: str | None, token: str | None) -> None:
    """Print what runs, and what to try first, for people."""
    console = make_console(soft_wrap=True)
    console.print(_title(service))
    for name, value in _rows(service, address):
        console.print(Text.assemble((f"  {name:<10}", "bold cyan"), escaped_text(value)))
    if token:
        console.print("\n[bold yellow]Admin token[/], created now and shown only once:\n")
        console.print(Text(f"  export {TOKEN_VARIABLE}={token}\n"))
        console.print("To choose your own, set ONCEWARD_ADMIN_TOKENS=name:token.")
    if address:
        authorization = _authorization(service)
        if sample := _sample_send(service, app, address):
            console.print("\n[bold]Send an event twice: it is recorded once.[/]\n")
        else:
            sample = _sample_request(service, address), ""
            console.print("\n[bold]Send an event, then send it again: it is recorded once.[/]\n")
        command, note = sample
        console.print(Text(f"  {command}"))
        if note:
            console.print(Text(f"\n  {note}"))
        console.print("\n[bold]See the event and its effects:[/]\n")
        for kind in ("events", "effects"):
            console.print(Text(f"  curl{authorization} {address}{ADMIN}/{kind}"))
    console.print("\n[dim]Press Ctrl-C to stop. Accepted events stay in the database.[/]\n")


def _title(service: Service) -> str:
    title = f"\n[bold]Onceward {__version__}[/]"
    if not service.dev:
        return f"{title}\n"
    notice = f"The admin API and {INGEST} are open to this machine."
    return f"{title} [black on yellow] dev [/]\n{notice}\n"


def _rows(service: Service, address: str | None) -> list[tuple[str, str]]:
    rows = []
    if address:
        rows.append(("Receive", f"{address}{INGEST}"))
        labels = [_source_label(source) for source in service.sources.values()]
        rows += [("", f"{address}{WEBHOOKS}{label}") for label in labels]
        rows.append(("Admin", f"{address}{ADMIN}"))
        rows.append(("", "  ".join(LISTS)))
    rows.append(("Database", service.database))
    for index, (name, handler) in enumerate(service.handlers.items()):
        patterns = ", ".join(route.pattern for route in handler.routes)
        target = f" → {handler.forwards_to}" if handler.forwards_to else ""
        label = f"{name} ← {patterns}{_filter_note(handler)}{target}"
        rows.append(("Handlers" if index == 0 else "", label))
    if not service.handlers:
        rows.append(("Handlers", "none: events are recorded and end as ignored"))
    elif service.settings.workers == 0:
        rows.append(("Workers", f"0: this process runs no jobs. {service.worker_advice}"))
    if service.unhandled:
        names = ", ".join(service.unhandled)
        text = "jobs are created for these handlers, but this app does not define them"
        rows.append(("Undefined", f"{names}: {text}"))
    return rows


def _filter_note(handler: Handler) -> str:
    """Return the filter of a handler, as the banner shows it behind the patterns."""
    if handler.condition is not None:
        return f" {handler.condition.label}"
    return f" when {filter_text(handler.filter)}" if handler.filter else ""


def _source_label(source: Source) -> str:
    """Return a source's name, marked as unsigned, as inline, or with a preset of another name."""
    notes = []
    if source.unsigned:
        notes.append("unsigned: accepts requests from anyone")
    elif source.preset_name != source.name:
        notes.append(source.preset_name)
    if source.reviews_unknown:
        notes.append("unknown types wait for review")
    if source.is_inline:
        notes.append("inline: handlers run within the request")
    return f"{source.name}  ({'; '.join(notes)})" if notes else source.name


def _sample_send(service: Service, app: str, address: str) -> tuple[str, str] | None:
    """Return a command that sends a webhook, and a note, if no handler accepts `INGEST` events."""
    wanting = [(each, route) for each in service.handlers.values() for route in each.routes]
    if not wanting or any(route.source in (None, INGEST_SOURCE) for _, route in wanting):
        return None
    targets = [(each, route, service.sources[route.source or ""]) for each, route in wanting]
    # The app can sign for most sources; others need a private key.
    signable = [target for target in targets if not needs_private_key(target[2].scheme)]
    targets = signable or targets
    fitting = [target for target in targets if _fits_example(*target)]
    handler, route, source = (fitting or targets)[0]
    parts = ["onceward", "send", source.name, "--app", app, "--to", address, "--times", "2"]
    if event_type := _type_to_set(source.preset, route):
        parts += ["--type", event_type]
    if fitting:
        return shlex.join(parts), ""
    fits = "passes the filter" if handler.filter else "fits the model"
    note = f"event.json is a body of your own, which {fits} of {handler.label}."
    return shlex.join([*parts, "--data", "event.json"]), note


def _fits_example(handler: Handler, route: Route, source: Source) -> bool:
    """Return whether the example of a source's preset fits the model and filter of a handler."""
    if handler.model is None and not handler.filter:
        return True
    try:
        event_type = _type_to_set(source.preset, route)
        outgoing = example_request(source.preset, url="", type=event_type)
        content_type = outgoing.headers.get("content-type", "")
        for event in source.reader.read(outgoing.request()):
            decode(event.body, handler.decoder, content_type=content_type)
            payload = decode(event.body, content_type=content_type)
            if handler.filter and not passes(handler.filter, payload):
                return False
    except Exception:  # noqa: BLE001 - a model may raise anything, and this is a suggestion
        return False
    return True


def _type_to_set(preset: Preset, route: Route) -> str | None:
    """Return a type for the example of a preset, unless the route matches its own type."""
    event_type = _example_type(route)
    try:
        request = example_request(preset, url="").request()
        events = make_event_reader(preset, preset.scheme()).read(request)
        example_request(preset, url="", type=event_type)
    except (ConfigurationError, RequestRefused):  # the example has no type of its own
        return None
    types = [event.identity.type for event in events]
    if route.literal in types or (route.is_prefix and types[0].startswith(route.literal)):
        return None
    return event_type


def _example_type(route: Route) -> str:
    return route.literal + ("example" if route.is_prefix else "")


def _sample_request(service: Service, address: str) -> str:
    accepting = (
        (handler, route)
        for handler in service.handlers.values()
        for route in handler.routes
        if route.source in (None, INGEST_SOURCE)
    )
    handler, route = next(accepting, (None, None))
    event_type = _example_type(route) if route else "example"
    payload = sample_payload(handler.decoder) if handler and handler.model else {"hello": "world"}
    if handler and handler.filter:
        payload = with_members(payload if handler.model else {}, filter_members(handler.filter))
    body = {"event_id": "evt_1", "event_type": event_type, "payload": payload}
    text = shlex.quote(msgspec.json.encode(body).decode())
    parts = [
        f"curl{_authorization(service)} {address}{INGEST}",
        "-H 'content-type: application/json'",
        f"-d {text}",
    ]
    return " \\\n    ".join(parts)


def _authorization(service: Service) -> str:
    return "" if service.dev else f' -H "authorization: Bearer ${TOKEN_VARIABLE}"'
