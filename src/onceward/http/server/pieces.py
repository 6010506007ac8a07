"""Where input is cut before it is parsed, so that a request begins only with a piece.

The parser of httptools is lenient about what is before a request and in its first line, and does
not say where that line was. So a piece ends where a request may end: after an empty line, or after
the chunks that have arrived. Each first line is checked here.
"""

from __future__ import annotations

import re
from typing import Final

from onceward.errors import RequestRefused
from onceward.http.errors import CLOSE, HttpError

_REQUEST_LINE: Final = re.compile(rb"\S+ \S+ HTTP/[0-9.]+\r\n")
_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]+")
_TINY_CHUNKS: Final = re.compile(
    b"(?:0*(?:%b))*"
    % b"|".join(b"%x(?:;[^\r\n]*)?\r\n.{%d}\r\n" % (size, size) for size in range(1, 16)),
    re.DOTALL | re.IGNORECASE,
)
"""Chunks of less than 16 bytes. One by one, they would cost ten times as much as their parsing."""
_LINE_END: Final = b"\r\n"
_EMPTY_LINE: Final = b"\r\n\r\n"
_TAIL_BYTES: Final = len(_EMPTY_LINE) - 1


def malformed(reason: str) -> RequestRefused:
    """Return the refusal of a request that servers could read in different ways."""
    return HttpError(400, "malformed", f"{reason}. Send valid HTTP/1.1.", headers=CLOSE)


class Pieces:
    """Finds the ends of the pieces of one connection."""

    def __init__(self) -> None:
        self._line: bytes | None = b""
        """The beginning of an incomplete request line; None once the line is complete."""
        self._tail = b""
        """The last bytes of the lines that arrived: an empty line may begin in them."""
        self._is_in_chunks = False
        self._size_line = b""
        """The beginning of an incomplete line with the size of a chunk."""
        self._chunk_rest = 0
        """How much of the current chunk is missing, with its line break."""

    def end_request(self) -> None:
        """Expect a request line next."""
        self._line = b""
        self._is_in_chunks = False

    def begin_chunks(self) -> None:
        """Expect chunks next."""
        self._line = None
        self._is_in_chunks = True

    def end_of_piece(self, data: bytes, at: int) -> int:
        """Return where the piece that begins here ends. Raise RequestRefused."""
        if self._is_in_chunks:
            return self._end_of_chunks(data, at)
        if self._line is not None:
            blank = self._end_of_blank_lines(data, at)
            if blank > at:
                return blank
            self._check_line(data, at)
        return self._end_of_lines(data, at)

    def _end_of_blank_lines(self, data: bytes, at: int) -> int:
        """Return where blank lines before a request end: servers ignore them (RFC 9112, 2.2)."""
        if self._line == b"\r" and data[at : at + 1] == b"\n":
            self._line = b""
            return at + 1
        while not self._line and data.startswith(_LINE_END, at):
            at += len(_LINE_END)
        return at

    def _check_line(self, data: bytes, at: int) -> None:
        """Check the request line that begins or continues here. Raise RequestRefused."""
        if not self._line and _REQUEST_LINE.match(data, at):
            self._line = None  # the usual case
            return
        line = (self._line or b"") + data[at:]
        is_complete = b"\n" in line
        is_bare = line[:1] in (b"\r", b"\n") and line != b"\r"
        if is_bare or (is_complete and not _REQUEST_LINE.match(line)):
            raise malformed("The first line must be METHOD /path HTTP/1.1, with single spaces")
        self._line = None if is_complete else line

    def _end_of_lines(self, data: bytes, at: int) -> int:
        """Return where the next empty line ends, or the end of the data."""
        tail, self._tail = self._tail, b""
        if tail:
            found = (tail + data[at : at + _TAIL_BYTES]).find(_EMPTY_LINE)
            if found >= 0:
                return at + found + len(_EMPTY_LINE) - len(tail)
        found = data.find(_EMPTY_LINE, at)
        if found >= 0:
            return found + len(_EMPTY_LINE)
        self._tail = (tail + data[at:])[-_TAIL_BYTES:]
        return len(data)

    def _end_of_chunks(self, data: bytes, at: int) -> int:
        """Return where the chunks that have arrived end: before the trailers, if they begin here.

        What is in a chunk is skipped: it may look like a request. Raise RequestRefused.
        """
        while at < len(data):
            if self._chunk_rest:
                arrived = min(self._chunk_rest, len(data) - at)
                self._chunk_rest -= arrived
                at += arrived
                continue
            if not self._size_line and (tiny := _TINY_CHUNKS.match(data, at)):
                at = tiny.end()
            end = data.find(b"\n", at) + 1
            self._size_line += data[at : end or len(data)]
            if not end:
                return len(data)
            size = _CHUNK_SIZE.match(self._size_line)
            if size is None:
                raise malformed("A chunk must begin with its size")
            self._size_line = b""
            at = end
            self._chunk_rest = int(size[0], 16)
            if not self._chunk_rest:
                self._is_in_chunks = False
                self._tail = _LINE_END  # the empty line may follow at once
                break
            self._chunk_rest += len(_LINE_END)
        return at
