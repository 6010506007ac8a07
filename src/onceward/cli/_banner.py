"""The startup banner: the address, the sources and handlers, and commands to try first."""

from __future__ import annotations

import shlex
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from onceward.cli._options import print_json, redact_url
from onceward.cli._sample_payload import sample_payload
from onceward.http.admin_app import ADMIN
from onceward.http.receive_app import INGEST, WEBHOOKS
from onceward.operate.filters import LISTS
from onceward.service import Service
from onceward.sources.source import Source
from onceward.version import __version__

TOKEN_VARIABLE: Final = "ONCEWARD_TOKEN"  # noqa: S105 - the name of a variable


def announce(service: Service, address: str | None, token: str | None, *, as_json: bool) -> None:
    """Print what runs, as one line of JSON or as a banner for people."""
    if as_json:
        print_json(_startup_info(service, address, token))
    else:
        _print_banner(service, address, token)


def _startup_info(service: Service, address: str | None, token: str | None) -> dict[str, Any]:
    """Return the facts of the banner, for programs to read."""
    return {
        "onceward": __version__,
        "address": address,
        "database": redact_url(service.settings.database_url),
        "dev": service.dev,
        "workers": service.settings.workers if service.handlers else 0,
        "sources": {name: source.preset_name for name, source in service.sources.items()},
        "handlers": {
            name: [route.pattern for route in handler.routes]
            for name, handler in service.handlers.items()
        },
        "undefined_handlers": service.unhandled,
        **({"admin_token": token} if token else {}),
    }


def _print_banner(service: Service, address: str | None, token: str | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(_title(service))
    for name, value in _rows(service, address):
        console.print(Text.assemble((f"  {name:<10}", "bold cyan"), value))
    if token:
        console.print("\n[bold yellow]Admin token[/], created now and shown only once:\n")
        console.print(Text(f"  export {TOKEN_VARIABLE}={token}\n"))
        console.print("To choose your own, set ONCEWARD_ADMIN_TOKENS=name:token.")
    if address:
        authorization = _authorization(service)
        console.print("\n[bold]Send an event, then send it again: it is recorded once.[/]\n")
        console.print(Text(f"  {_sample_request(service, address)}"))
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
        rows.append(("Admin", f"{address}{ADMIN}/"))
        rows.append(("", "  ".join(LISTS)))
    rows.append(("Database", redact_url(service.settings.database_url)))
    for index, (name, handler) in enumerate(service.handlers.items()):
        patterns = ", ".join(route.pattern for route in handler.routes)
        rows.append(("Handlers" if index == 0 else "", f"{name} ← {patterns}"))
    if not service.handlers:
        rows.append(("Handlers", "none: events are recorded and end as ignored"))
    elif service.settings.workers == 0:
        rows.append(("Workers", f"0: this process only receives. {service.worker_advice}"))
    if service.unhandled:
        names = ", ".join(service.unhandled)
        text = "jobs are created for these handlers, but this app does not define them"
        rows.append(("Undefined", f"{names}: {text}"))
    return rows


def _source_label(source: Source) -> str:
    """Return a source's name, marked as unsigned or with a preset of another name."""
    if source.unsigned:
        return f"{source.name}  (unsigned: accepts requests from anyone)"
    if source.preset_name == source.name:
        return source.name
    return f"{source.name}  ({source.preset_name})"


def _sample_request(service: Service, address: str) -> str:
    handler = next(iter(service.handlers.values()), None)
    route = handler.routes[0] if handler else None
    event_type = (route.literal + ("example" if route.is_prefix else "")) if route else "example"
    payload = sample_payload(handler.decoder) if handler and handler.model else {"hello": "world"}
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
