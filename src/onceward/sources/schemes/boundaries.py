"""Where one signed value ends and the next begins.

A signature covers values that are joined to one text. If the text could be cut in another way, the
proof of one request would serve for another. The boundaries of a template are therefore found in
the text alone, from its start and its end towards one value that may contain anything: usually the
body. A request whose values lie elsewhere is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.schemes.times import TimeStyle

BODY: Final = "body"
TIMESTAMP: Final = "timestamp"
_DIGEST_PATTERNS: Final = {"body:md5": rb"[0-9A-Za-z+/]{22}=="}
_KNOWN_TO_RECEIVER: Final = {
    "method": "the method is POST",
    "url": "the URL is the source's own",
    "target": "the path and query are the source's own",
}


@dataclass(frozen=True, slots=True)
class StartBoundary:
    """The end of a value before the free one: where the text that follows it first occurs."""

    part: int
    name: str
    next_text: re.Pattern[bytes]

    def check(self, parts: Sequence[bytes], content: bytes) -> None:
        """Raise SignatureRejected if the value ends elsewhere."""
        start = sum(map(len, parts[: self.part]))
        found = self.next_text.search(content, start)
        if found is None or found.start() != start + len(parts[self.part]):
            raise _ambiguous(self.name)


@dataclass(frozen=True, slots=True)
class EndBoundary:
    """The start of a value after the free one: behind the last occurrence of the separator."""

    part: int
    name: str
    separator: bytes

    def check(self, parts: Sequence[bytes], content: bytes) -> None:  # noqa: ARG002 - as StartBoundary
        """Raise SignatureRejected if the value contains the separator."""
        if self.separator in parts[self.part]:
            raise _ambiguous(self.name)


Boundary = StartBoundary | EndBoundary


def _ambiguous(name: str) -> SignatureRejected:
    message = f"{name} contains what separates it from the next signed value"
    return SignatureRejected(message, RejectionCause.MALFORMED)


@dataclass(frozen=True, slots=True)
class Joints:
    """The boundaries to check in a request, and why all others cannot move."""

    boundaries: tuple[Boundary, ...]
    explanation: str

    def check(self, parts: Sequence[bytes], content: bytes) -> None:
        """Raise SignatureRejected if the content could be cut in another way."""
        for boundary in self.boundaries:
            boundary.check(parts, content)


def find_joints(pieces: Sequence[str], style: TimeStyle) -> Joints:
    """Return the joints of a template. Raises ConfigurationError if a boundary is not defined.

    `pieces` are alternately fixed text, which may be empty, and the name of a placeholder.
    """
    found: list[_Joint] = []
    position, last = 1, len(pieces) - 2
    while position < last and pieces[position] != BODY:
        joint = _joint_at_start(pieces, position, style)
        if joint is None:
            break
        found.append(joint)
        position += 2
    free = pieces[position]
    found += [_joint_at_end(pieces, later, free) for later in range(position + 2, last + 1, 2)]
    boundaries = tuple(boundary for boundary, _ in found if boundary is not None)
    reasons = dict.fromkeys(reason for _, reason in found)
    return Joints(boundaries, "; ".join(reasons) or "one value is signed")


_Joint = tuple[Boundary | None, str]


def _joint_at_start(pieces: Sequence[str], position: int, style: TimeStyle) -> _Joint | None:
    """Return the end of a value, found from the start of the content; None if it is not defined."""
    name, following = pieces[position], pieces[position + 1]
    if name in _KNOWN_TO_RECEIVER:
        return None, _KNOWN_TO_RECEIVER[name]
    if name in _DIGEST_PATTERNS or (name == TIMESTAMP and _is_delimited(style, following)):
        return None, f"the {name} has a fixed format"
    next_text = b"".join(_patterns_until_free(pieces[position + 1 :], style))
    is_found = following or (pieces[position + 2] == TIMESTAMP and style.has_marks)
    if not is_found:
        return None
    shown = _shown_until_free(pieces[position + 1 :])
    boundary = StartBoundary(position, name, re.compile(next_text))
    return boundary, f"`{name}` ends at the first `{shown}`"


def _joint_at_end(pieces: Sequence[str], position: int, free: str) -> _Joint:
    """Return the start of a value, found from the end. Raises ConfigurationError."""
    name, preceding = pieces[position], pieces[position - 1]
    if name in _KNOWN_TO_RECEIVER:
        return None, _KNOWN_TO_RECEIVER[name]
    if name in _DIGEST_PATTERNS or name == TIMESTAMP:
        return None, f"the {name} has a fixed format"
    if not preceding:
        raise ConfigurationError(
            f"content does not define where {{{free}}} ends and {{{name}}} begins: the signed text "
            "could be cut elsewhere, and one signature would fit several requests"
        )
    return EndBoundary(position, name, preceding[-1:].encode()), f"`{name}` has no `{preceding}`"


def _is_delimited(style: TimeStyle, following: str) -> bool:
    """Return whether a timestamp cannot be longer than it is, given the text that follows."""
    if not style.may_continue_with:
        return True
    return following != "" and following.encode()[:1] not in style.may_continue_with


def _patterns_until_free(pieces: Sequence[str], style: TimeStyle) -> Iterator[bytes]:
    """Yield the patterns of the pieces up to the first that may be any text."""
    for position, piece in enumerate(pieces):
        if position % 2 == 0:
            yield re.escape(piece.encode())
        elif piece == TIMESTAMP:
            yield style.pattern
        elif piece in _DIGEST_PATTERNS:
            yield _DIGEST_PATTERNS[piece]
        else:
            return


def _shown_until_free(pieces: Sequence[str]) -> str:
    shown = []
    for position, piece in enumerate(pieces):
        if position % 2 and piece != TIMESTAMP and piece not in _DIGEST_PATTERNS:
            break
        shown.append(f"{{{piece}}}" if position % 2 else piece.replace("\n", "⏎"))
    return "".join(shown)
