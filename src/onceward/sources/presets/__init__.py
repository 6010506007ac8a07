"""Presets: how each provider signs and identifies its events, as data."""

from onceward.sources.presets.catalogue import CUSTOM_HMAC, PRESETS, find_preset
from onceward.sources.presets.preset import Preset

__all__ = ["CUSTOM_HMAC", "PRESETS", "Preset", "find_preset"]
