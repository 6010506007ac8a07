"""Shared by ``send`` and ``verify``: options that choose the provider and the secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from onceward.cli._loading import load_inbox
from onceward.errors import ConfigurationError
from onceward.runtime.suggest import suggest_or_list
from onceward.sources.presets import Preset, find_preset
from onceward.sources.presets.vendor_schemes.paypal import PayPal
from onceward.sources.presets.vendor_schemes.sns import Sns
from onceward.sources.schemes import Scheme
from onceward.sources.schemes.algorithms import Asymmetric

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False)
_OPTIONS = (
    click.option("--app", metavar="APP", help="Take the source and its secrets from this app."),
    click.option(
        "--preset", "preset_name", metavar="NAME", help="The preset, if SOURCE is not its name."
    ),
    click.option("--scheme", "scheme_name", metavar="NAME", help="One of the preset's schemes."),
    click.option("--secret", envvar="ONCEWARD_SECRET", help="The secret; or set ONCEWARD_SECRET."),
    click.option("--secret-file", type=_FILE, help="A file that contains the secret."),
    click.option("--url", metavar="URL", help="The public URL, for providers that sign it."),
)


def sender_options(command: F) -> F:
    """Add the options that choose the sender."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Sender:
    """A preset with a scheme and secrets, from the options or the app."""

    preset: Preset
    scheme: Scheme
    secrets: tuple[str | bytes, ...] = field(repr=False)
    url: str | None
    uses_app_secrets: bool = False
    unsigned: bool = False

    def require_secret(self) -> str | bytes:
        """Return the first secret. Raises ConfigurationError when the sender has none."""
        if self.secrets:
            return self.secrets[0]
        if not self.uses_app_secrets:
            raise ConfigurationError("a secret is required: set --secret, --secret-file or --app")
        message = "the app has no secret for this source: set --secret"
        raise ConfigurationError(f"{message} (`onceward secrets` shows provisioned secrets)")


def needs_private_key(scheme: Scheme) -> bool:
    """Return whether signing takes a private key, which a receiver does not have."""
    algorithm = getattr(scheme, "algorithm", None)
    return isinstance(algorithm, Asymmetric) or isinstance(scheme, Sns | PayPal)


def resolve_sender(
    source: str,
    *,
    app: str | None,
    preset_name: str | None,
    scheme_name: str | None,
    secret: str | None,
    secret_file: str | None,
    url: str | None,
) -> Sender:
    """Return the sender that the options choose. Raises ConfigurationError."""
    cli_secrets = _cli_secrets(secret, secret_file)
    if app is None:
        preset = _find_preset(source, preset_name)
        return Sender(preset, preset.scheme(scheme_name), cli_secrets, url)
    sources = load_inbox(app).sources
    if source not in sources:
        hint = suggest_or_list(source, sources, "its sources are")
        raise ConfigurationError(f"{app} has no source {source!r}{hint}")
    configured = sources[source]
    preset = configured.preset
    scheme = configured.scheme if scheme_name is None else preset.scheme(scheme_name)
    return Sender(
        preset,
        scheme,
        cli_secrets or configured.secrets,
        url or configured.url,
        uses_app_secrets=not cli_secrets,
        unsigned=configured.unsigned,
    )


def _find_preset(source: str, preset_name: str | None) -> Preset:
    try:
        return find_preset(preset_name or source)
    except ConfigurationError as error:
        if preset_name is not None:
            raise
        message = f"{error}; for a source of your app, add --app app.py"
        raise ConfigurationError(message) from None


def _cli_secrets(secret: str | None, secret_file: str | None) -> tuple[str | bytes, ...]:
    if secret_file is None:
        return () if secret is None else (secret,)
    text = Path(secret_file).read_bytes()
    return (text if b"-----" in text else text.strip(),)
