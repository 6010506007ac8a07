"""The replies of Redis, in version 2 of its protocol (RESP)."""

from __future__ import annotations

from typing import Any, Final

MAX_ITEM_BYTES: Final = 1_024
"""The most bytes of a text, a number or an error. The values of Onceward have at most 19."""
MAX_SKIPPED_BYTES: Final = 1024 * 1024
"""The most bytes of longer texts that one reply may have. They are somebody else's values."""
_MAX_TEXT_BYTES: Final = MAX_ITEM_BYTES // 2  # its length and its ends have room, too
_MAX_DEPTH: Final = 4
_MAX_DIGITS: Final = 20
_END: Final = b"\r\n"
_NOT_RESP: Final = "the reply is not RESP: is this a Redis server?"


class ReplyError(Exception):
    """An error that Redis replied, such as ``OOM command not allowed …``."""

    @property
    def code(self) -> str:
        """The first word, such as ``OOM``."""
        return str(self).partition(" ")[0]


Reply = bytes | int | list[Any] | ReplyError | None
"""A text, a number, a list of replies, an error or nothing."""


class MalformedReply(Exception):
    """The peer does not speak the protocol, or sent too much."""


class ReplyReader:
    """Reads replies from the bytes of a connection.

    What the peer can cost is bounded by what was asked: a complete item is never read again, and
    nothing is kept but the items of one reply and the beginning of the next item. A text in a list
    that is too long is None.
    """

    def __init__(self) -> None:
        self._buffer = b""
        """The beginning of an item."""
        self._lists: list[tuple[list[Any], int]] = []
        """The incomplete lists, each within the one before, with their lengths."""
        self._items = 0
        """The announced items of the incomplete lists."""
        self._skipped = 0
        """The bytes of this reply's texts that are too long."""
        self._to_skip = 0
        """Those of them that are still to come."""

    def feed(self, data: bytes, expected: int, max_items: int) -> list[Reply]:
        """Add bytes and return the replies that are now complete.

        Raise MalformedReply, also for more than the `expected` replies, or for a reply whose lists
        have more than `max_items` items together.
        """
        buffer = self._buffer + data if self._buffer else data
        replies: list[Reply] = []
        item: Reply
        position = 0
        while position < len(buffer):
            if self._to_skip:
                position += self._skip(len(buffer) - position, replies)
                continue
            if len(replies) == expected:
                raise MalformedReply("Redis replied to no command")
            end = buffer.find(_END, position, position + MAX_ITEM_BYTES)
            if end < 0:
                break
            kind, line = buffer[position : position + 1], buffer[position + 1 : end]
            after = end + len(_END)
            if kind == b"*":
                position = after
                self._begin_list(_number(line), max_items, replies)
                continue
            if kind == b"$":
                length = _number(line)
                if length > _MAX_TEXT_BYTES:
                    position = after
                    self._begin_skip(length)
                    continue
                item, after = _read_bulk(buffer, after, length)
            else:
                item = _read_line(kind, line)
            if after > len(buffer):
                break
            position = after
            self._add(item, replies)
        self._buffer = buffer[position:]
        if len(self._buffer) > MAX_ITEM_BYTES:
            raise MalformedReply(f"a reply has an item of more than {MAX_ITEM_BYTES} bytes")
        return replies

    def _begin_skip(self, length: int) -> None:
        self._skipped += length
        if not self._lists or self._skipped > MAX_SKIPPED_BYTES:
            raise MalformedReply(f"a reply has a text of {length} bytes")
        self._to_skip = length + len(_END)

    def _skip(self, available: int, replies: list[Reply]) -> int:
        """Return how many of the available bytes belong to a text that is too long."""
        skipped = min(self._to_skip, available)
        self._to_skip -= skipped
        if not self._to_skip:
            self._add(None, replies)
        return skipped

    def _begin_list(self, length: int, max_items: int, replies: list[Reply]) -> None:
        self._items += max(0, length)
        if length < -1 or len(self._lists) == _MAX_DEPTH:
            raise MalformedReply(_NOT_RESP)
        if self._items > max_items:
            raise MalformedReply("the reply is longer than asked for")
        if length > 0:
            self._lists.append(([], length))
        else:
            self._add(None if length else [], replies)

    def _add(self, item: Reply, replies: list[Reply]) -> None:
        """Add an item to the innermost list, and each list that is then complete to its own."""
        while self._lists:
            items, length = self._lists[-1]
            items.append(item)
            if len(items) < length:
                return
            self._lists.pop()
            item = items
        self._items = self._skipped = 0
        replies.append(item)


def _read_line(kind: bytes, line: bytes) -> Reply:
    match kind:
        case b"+":
            return line
        case b"-":
            return ReplyError(line.decode(errors="replace"))
        case b":":
            return _number(line)
        case _:
            raise MalformedReply(_NOT_RESP)


def _read_bulk(buffer: bytes, position: int, length: int) -> tuple[bytes | None, int]:
    if length == -1:
        return None, position
    if length < 0:
        raise MalformedReply(_NOT_RESP)
    end = position + length
    if not _END.startswith(buffer[end : end + len(_END)]):
        raise MalformedReply(_NOT_RESP)
    return buffer[position:end], end + len(_END)


def _number(line: bytes) -> int:
    digits = line if line[:1] != b"-" else line[1:]
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        raise MalformedReply(_NOT_RESP)
    return int(line)
