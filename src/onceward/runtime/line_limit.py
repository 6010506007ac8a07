"""A limit on log lines of one kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LINE_INTERVAL_SECONDS: Final = 1.0


@dataclass(slots=True)
class LineLimit:
    """Lets one log line through each second, and counts the suppressed ones."""

    quiet_until: float = 0.0
    suppressed: int = 0

    def take(self, now: float) -> int | None:
        """Return how many lines were suppressed since the last one, or None if none is due."""
        if now < self.quiet_until:
            self.suppressed += 1
            return None
        suppressed, self.suppressed = self.suppressed, 0
        self.quiet_until = now + LINE_INTERVAL_SECONDS
        return suppressed


def suppressed_note(suppressed: int) -> str:
    """Return how many lines a line stands for beside itself."""
    return f"{suppressed} more since the last line"


def suppressed_text(suppressed: int) -> str:
    """Return the end of a line that may stand for others too."""
    return f" ({suppressed_note(suppressed)})" if suppressed else ""
