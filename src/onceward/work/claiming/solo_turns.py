"""The turns of jobs that must run alone in their process, and of all the others."""

from __future__ import annotations

import math
from typing import Final

TURN_SECONDS: Final = 1.0
"""How long either kind has its turn while both wait."""

MAX_TURN_SECONDS: Final = 300.0


class SoloTurns:
    """Decides whether the next claim is for a job that must run alone.

    Such a job waits until nothing else runs. A long handler may not end within a turn: then the
    others go on for as long, and the next attempt takes twice the time.
    """

    def __init__(self) -> None:
        self._is_waiting = False
        self._is_solo = False
        self._began_at = -math.inf
        self._seconds = TURN_SECONDS
        self._was_empty = True
        """Whether the process became empty during the last turn of solo jobs."""
        self._was_in_vain = False
        """Whether the last claim of a solo job found none, although one was waiting."""

    def note_waiting(self, *, is_waiting: bool) -> None:
        """Note whether a job that must run alone is due."""
        self._is_waiting = is_waiting

    def note_solo_claim(self, now: float, *, found: bool) -> None:
        """Note a claim of a solo job.

        The first one that finds a job begins the turn anew, and one that finds none ends it.
        """
        if not found:
            self._began_at = -math.inf
        elif not self._was_empty:
            self._began_at = now
        self._was_empty, self._was_in_vain = True, not found
        self._seconds = TURN_SECONDS

    def note_idle(self) -> None:
        """End the turn of the others: none of them runs or is due.

        A solo job that could not be claimed just now still waits for a turn. It may be held up by
        a limit, and would be claimed in vain again and again.
        """
        if not self._is_solo and not self._was_in_vain:
            self._began_at = -math.inf

    def is_solo(self, now: float) -> bool:
        """Return whether it is the turn of jobs that must run alone."""
        if not self._is_waiting:
            self._was_empty, self._seconds = True, TURN_SECONDS
        is_over = now >= self._began_at + self._seconds
        if self._is_solo and (is_over or not self._is_waiting):
            self._is_solo, self._began_at = False, now
        elif not self._is_solo and self._is_waiting and is_over:
            if not self._was_empty:
                self._seconds = min(2 * self._seconds, MAX_TURN_SECONDS)
            self._is_solo, self._began_at = True, now
            self._was_empty = self._was_in_vain = False
        return self._is_solo
