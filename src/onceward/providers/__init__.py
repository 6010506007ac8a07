"""What each provider does, as data."""

from onceward.providers.presets import PRESETS, Preset, preset

__all__ = ["PRESETS", "Preset", "preset"]
