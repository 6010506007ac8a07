"""All presets by name."""

from __future__ import annotations

from typing import Final

from onceward.errors import ConfigurationError
from onceward.runtime.suggest import did_you_mean
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
    """Return a preset. Raises ConfigurationError, which suggests a similar name."""
    try:
        return PRESETS[name]
    except KeyError:
        hint = did_you_mean(name, PRESETS) or "."
        message = f"there is no preset {name!r}{hint} `onceward sources` lists all presets"
        raise ConfigurationError(message) from None
