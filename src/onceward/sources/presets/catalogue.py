"""All presets, by their names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from onceward.errors import ConfigurationError
from onceward.sources.presets import commerce, development, messaging, payments, standard
from onceward.sources.presets.preset import Preset
from onceward.sources.schemes import Signature

CUSTOM_HMAC: Final = "hmac"
"""The preset whose signature header and prefix are the user's to set."""

_ENTRIES: Final = (
    Preset(
        name=CUSTOM_HMAC,
        title="Any sender that signs its body by HMAC-SHA256",
        schemes=Signature(at="header:X-Signature"),
        id="header:X-Event-Id",
        type="json:type",
    ),
    *standard.PRESETS,
    *payments.PRESETS,
    *commerce.PRESETS,
    *development.PRESETS,
    *messaging.PRESETS,
)

PRESETS: Final = {entry.name: entry for entry in _ENTRIES}


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises ConfigurationError with those that are called alike."""
    try:
        return PRESETS[name]
    except KeyError:
        alike = get_close_matches(name, PRESETS, n=3, cutoff=0.7)
        hint = f"did you mean {' or '.join(alike)}? " if alike else ""
        message = f"no preset {name!r}; {hint}`onceward sources` lists them all"
        raise ConfigurationError(message) from None
