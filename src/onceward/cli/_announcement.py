"""What `serve` and `work` print when they have started."""

from __future__ import annotations

from typing import Any

from onceward.cli._options import print_json
from onceward.service import Service
from onceward.version import __version__


def announce(
    service: Service, app: str, address: str | None, token: str | None, *, as_json: bool
) -> None:
    """Print what runs, as one line of JSON or as a banner for people."""
    if as_json:
        print_json(_startup_info(service, address, token))
        return
    from onceward.cli._banner import print_banner  # noqa: PLC0415 - programs need no rich

    print_banner(service, app, address, token)


def _startup_info(service: Service, address: str | None, token: str | None) -> dict[str, Any]:
    """Return the facts of the banner, for programs to read."""
    return {
        "onceward": __version__,
        "address": address,
        "database": service.database,
        "dev": service.dev,
        "workers": service.settings.workers if service.handlers else 0,
        "sources": {name: source.preset_name for name, source in service.sources.items()},
        "inline_sources": [name for name, each in service.sources.items() if each.is_inline],
        "handlers": {
            name: [route.pattern for route in handler.routes]
            for name, handler in service.handlers.items()
        },
        "filters": {
            name: handler.filter or "function"
            for name, handler in service.handlers.items()
            if handler.filter or handler.condition
        },
        "forwards": service.forwards,
        "undefined_handlers": service.unhandled,
        **({"admin_token": token} if token else {}),
    }
