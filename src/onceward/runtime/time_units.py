"""The units of durations and rates in options, such as ``24h`` or ``100/m``."""

from __future__ import annotations

from typing import Final

UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""The seconds of each unit, shortest first."""
