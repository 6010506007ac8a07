"""Where one signed value ends and the next begins.

A signature covers values that are joined to one text. If the text could be cut in another way, the
proof of one request would serve for another. The boundaries of a template are therefore found in
the text alone, from its start and its end towards one value that may contain anything: usually the
body. A request whose values lie elsewhere is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
class ValueEnd:
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
class ValueStart:
    """The start of a value after the free one: behind the last occurrence of the separator."""

    part: int
    name: str
    separator: bytes

    def check(self, parts: Sequence[bytes], content: bytes) -> None:  # noqa: ARG002 - as ValueEnd
        """Raise SignatureRejected if the value contains the separator."""
        if self.separator in parts[self.part]:
            raise _ambiguous(self.name)


Boundary = ValueEnd | ValueStart


def _ambiguous(name: str) -> SignatureRejected:
    message = f"{name} contains what separates it from the next signed value"
    return SignatureRejected(message, RejectionCause.MALFORMED)


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The boundaries to check in a request, and why all others cannot move."""

    checked: tuple[Boundary, ...]
    explanation: str

    def check(self, parts: Sequence[bytes], content: bytes) -> None:
        """Raise SignatureRejected if the content could be cut in another way."""
        for boundary in self.checked:
            boundary.check(parts, content)


_Found = tuple[Boundary | None, str]
"""A boundary to check, or None if it cannot move, and what fixes its place."""


def find_boundaries(pieces: Sequence[str], style: TimeStyle) -> Boundaries:
    """Return the boundaries of a template. Raises ConfigurationError if one is not defined.

    `pieces` are alternately fixed text, which may be empty, and the name of a placeholder.
    """
    found: list[_Found] = []
    position, last = 1, len(pieces) - 2
    while position < last and pieces[position] != BODY:
        boundary = _find_end(pieces, position, style)
        if boundary is None:
            break
        found.append(boundary)
        position += 2
    free = pieces[position]
    found += [_find_start(pieces, later, free) for later in range(position + 2, last + 1, 2)]
    checked = tuple(boundary for boundary, _ in found if boundary is not None)
    reasons = dict.fromkeys(reason for _, reason in found)
    return Boundaries(checked, "; ".join(reasons) or "one value is signed")


def _find_end(pieces: Sequence[str], position: int, style: TimeStyle) -> _Found | None:
    """Return the end of a value before the free one; None if it is not defined."""
    name, following = pieces[position], pieces[position + 1]
    if name in _KNOWN_TO_RECEIVER:
        return None, _KNOWN_TO_RECEIVER[name]
    if name in _DIGEST_PATTERNS or (name == TIMESTAMP and _is_delimited(style, following)):
        return None, f"the {name} has a fixed format"
    is_found = following or (pieces[position + 2] == TIMESTAMP and style.has_marks)
    if not is_found:
        return None
    next_text, shown = _text_until_free(pieces[position + 1 :], style)
    return ValueEnd(position, name, next_text), f"`{name}` ends at the first `{shown}`"


def _find_start(pieces: Sequence[str], position: int, free: str) -> _Found:
    """Return the start of a value after the free one. Raises ConfigurationError."""
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
    return ValueStart(position, name, preceding[-1:].encode()), f"`{name}` has no `{preceding}`"


def _is_delimited(style: TimeStyle, following: str) -> bool:
    """Return whether a timestamp cannot be longer than it is, given the text that follows."""
    if not style.may_continue_with:
        return True
    return following != "" and following.encode()[:1] not in style.may_continue_with


def _text_until_free(pieces: Sequence[str], style: TimeStyle) -> tuple[re.Pattern[bytes], str]:
    """Return the text up to the first piece that may be any text, as a pattern and for people."""
    pattern, shown = b"", ""
    formats = {TIMESTAMP: style.pattern, **_DIGEST_PATTERNS}
    for position, piece in enumerate(pieces):
        if position % 2 == 0:
            pattern += re.escape(piece.encode())
            shown += piece.replace("\n", "⏎")
        elif piece in formats:
            pattern += formats[piece]
            shown += f"{{{piece}}}"
        else:
            break
    return re.compile(pattern), shown
