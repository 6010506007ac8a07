"""What each known sender does. An entry is data, checked when it is loaded."""

from onceward.sources.presets.catalogue import BY_HAND, PRESETS, find_preset
from onceward.sources.presets.preset import Preset

__all__ = ["BY_HAND", "PRESETS", "Preset", "find_preset"]
