"""The first thing a person sees: where to post, where to look, and a line to paste."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from rich.console import Console
from rich.text import Text

from onceward.cli._options import print_json
from onceward.http.admin_app import ADMIN
from onceward.http.receive_app import INGEST, WEBHOOKS
from onceward.operate.filters import LISTS
from onceward.service import Service
from onceward.sources.source import Source
from onceward.version import __version__


def announce(service: Service, address: str | None, token: str | None, *, as_json: bool) -> None:
    """Print what runs, as a line of JSON or as a banner."""
    if as_json:
        print_json(startup_info(service, address, token))
    else:
        _print_banner(service, address, token)


def startup_info(service: Service, address: str | None, token: str | None) -> dict[str, Any]:
    """What there is to say at the start, for programs."""
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
        console.print(Text.assemble(("  " + name.ljust(10), "bold cyan"), value))
    if token:
        console.print("\n[bold yellow]Admin token[/], made now and shown this once:")
        console.print(Text(f"\n  {token}\n"))
        console.print("Keep it, or set your own in ONCEWARD_ADMIN_TOKENS=name:token.")
    if address:
        console.print("\n[bold]Try it, and send it twice:[/]\n")
        console.print(Text(_sample_request(service, address)))
        console.print("\n[bold]Then see what happened:[/]\n")
        console.print(Text(f"curl{_authorization(service)} {address}{ADMIN}/effects"))
    console.print("\n[dim]Ctrl-C stops it; what was accepted is kept.[/]\n")


def _title(service: Service) -> str:
    if service.dev:
        return (
            f"\n[bold]Onceward {__version__}[/]  [black on yellow] dev [/] "
            "the admin side and /events/ingest are open, to this machine only\n"
        )
    return f"\n[bold]Onceward {__version__}[/]\n"


def _rows(service: Service, address: str | None) -> list[tuple[str, str]]:
    rows = []
    if address:
        rows.append(("Post", f"{address}{INGEST}"))
        labels = [_source_label(source) for source in service.sources.values()]
        rows += [("", f"{address}{WEBHOOKS}{label}") for label in labels]
        rows.append(("Look", f"{address}{ADMIN}/" + "  /".join(LISTS)))
    rows.append(("Ledger", redact_url(service.settings.database_url)))
    for index, (name, handler) in enumerate(service.handlers.items()):
        patterns = ", ".join(route.pattern for route in handler.routes)
        rows.append(("Handlers" if index == 0 else "", f"{name} ← {patterns}"))
    if not service.handlers:
        rows.append(("Handlers", "none: events are recorded, and end ignored"))
    elif service.settings.workers == 0:
        rows.append(("Workers", "0: this process only receives; run onceward work beside it"))
    if service.unhandled:
        names = ", ".join(service.unhandled)
        rows.append(("Elsewhere", f"{names}: jobs are made for these, and this app has them not"))
    return rows


def _source_label(source: Source) -> str:
    """A source's name, and what it is where the name does not say it."""
    if source.unsigned:
        return f"{source.name}  unsigned: it takes what anyone sends"
    return (
        source.name
        if source.preset_name == source.name
        else f"{source.name}  as {source.preset_name}"
    )


def _sample_request(service: Service, address: str) -> str:
    handler = next(iter(service.handlers.values()), None)
    route = handler.routes[0] if handler else None
    event_type = (route.literal + ("example" if route.is_prefix else "")) if route else "example"
    payload = sample_payload(handler.model) if handler and handler.model else {"hello": "world"}
    body = {"event_id": "evt_1", "event_type": event_type, "payload": payload}
    text = shlex.quote(msgspec.json.encode(body).decode())
    authorization = _authorization(service)
    return f"curl{authorization} -H 'content-type: application/json' {address}{INGEST} -d {text}"


def _authorization(service: Service) -> str:
    return "" if service.dev else ' -H "authorization: Bearer $ONCEWARD_TOKEN"'


def sample_payload(model: Any) -> Any:
    """A payload that a model takes, more or less."""
    match msgspec.inspect.type_info(model):
        case msgspec.inspect.StructType(fields=fields):
            return {
                field.encode_name: _sample_value(field.encode_name, field.type)
                for field in fields
                if field.required
            }
    return {}


def _sample_value(name: str, kind: msgspec.inspect.Type) -> Any:
    match kind:
        case msgspec.inspect.StrType():
            return f"{name.removesuffix('_id')}_123"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 123
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.StructType(cls=cls):
            return sample_payload(cls)
        case msgspec.inspect.ListType():
            return []
    return {}


def redact_url(url: str) -> str:
    """A database's address without its password, wherever in it that stands."""
    if url.startswith("sqlite:"):
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}{colon}{'…' if colon else ''}{at}{host}"
    return urlunsplit(parts._replace(netloc=netloc, query="", fragment=""))
