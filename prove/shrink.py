"""Reduce a failing stream: drop lines, then bytes, then cuts, as long as it still fails."""

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

MAX_ATTEMPTS = 600
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class Case:
    """The bytes of a connection, the positions of the cuts, and how messages are handled."""

    data: bytes
    cuts: tuple[int, ...]
    is_direct: bool

    def without(self, start: int, end: int) -> "Case":
        """Return the case without a range of bytes; later cuts move with their bytes."""
        moved = (cut if cut <= start else max(start, cut - (end - start)) for cut in self.cuts)
        data = self.data[:start] + self.data[end:]
        cuts = sorted({cut for cut in moved if 0 < cut < len(data)})
        return replace(self, data=data, cuts=tuple(cuts))


async def shrink(case: Case, still_fails: Callable[[Case], Awaitable[bool]]) -> Case:
    """Return the smallest case found in a limited number of attempts."""
    attempts = 0
    for variants in (_without_cuts, _without_lines, _without_bytes, _without_cuts):
        is_smaller = True
        while is_smaller:
            is_smaller = False
            for smaller in variants(case):
                attempts += 1
                if attempts > MAX_ATTEMPTS:
                    return case
                if await still_fails(smaller):
                    case, is_smaller = smaller, True
                    break
    return case


def _without_cuts(case: Case) -> Iterator[Case]:
    if case.cuts:
        yield replace(case, cuts=())
    if len(case.cuts) > 1:
        for cut in case.cuts:
            yield replace(case, cuts=(cut,))
        for cut in case.cuts:
            yield replace(case, cuts=tuple(other for other in case.cuts if other != cut))


def _without_lines(case: Case) -> Iterator[Case]:
    """Drop runs of lines, the longest first: whole requests go before single headers."""
    spans = [match.span() for match in _LINE.finditer(case.data)]
    length = len(spans)
    while length:
        for first in range(len(spans) - length + 1):
            yield case.without(spans[first][0], spans[first + length - 1][1])
        length //= 2


def _without_bytes(case: Case) -> Iterator[Case]:
    for length in (32, 8, 2, 1):
        for start in range(0, len(case.data) - length + 1, length):
            yield case.without(start, start + length)
