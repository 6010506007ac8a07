"""All presets by name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from onceward.errors import ConfigurationError
from onceward.sources.presets import commerce, development, messaging, payments, standard
from onceward.sources.presets.preset import Preset
from onceward.sources.schemes import Signature

CUSTOM_HMAC: Final = "hmac"
"""The preset whose signature header and prefix the user sets."""

_ALL: Final = (
    Preset(
        name=CUSTOM_HMAC,
        title="Any sender that signs the body with HMAC-SHA256",
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

PRESETS: Final = {preset.name: preset for preset in _ALL}


def find_preset(name: str) -> Preset:
    """Return a preset. Raises ConfigurationError, which suggests similar names."""
    try:
        return PRESETS[name]
    except KeyError:
        similar = get_close_matches(name, PRESETS, n=3, cutoff=0.7)
        hint = f"did you mean {' or '.join(similar)}? " if similar else ""
        message = f"no preset {name!r}; {hint}`onceward sources` lists them all"
        raise ConfigurationError(message) from None
