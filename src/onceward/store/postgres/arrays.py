"""Columns of a batch as arrays in PostgreSQL's binary format: made here, because they are large.

The driver writes arrays as text, each item escaped, in Python; a batch of bodies took longer to
write down than to insert.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_INT4, _INT8, _TEXT, _BYTEA = 23, 20, 25, 17
_HEADER: Final = struct.Struct("!5i")
_LENGTH: Final = struct.Struct("!i")
_NULL: Final = _LENGTH.pack(-1)


class _Array:
    """An array as it goes over the wire."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class IntArray(_Array):
    """An int4[]."""


class BigIntArray(_Array):
    """An int8[]."""


class TextArray(_Array):
    """A text[]."""


class BytesArray(_Array):
    """A bytea[]."""


def ints(values: Sequence[int]) -> IntArray:
    """An int4[] of these."""
    pairs = [number for value in values for number in (4, value)]
    return IntArray(_header(_INT4, len(values)) + struct.pack(f"!{len(pairs)}i", *pairs))


def bigints(values: Sequence[int]) -> BigIntArray:
    """An int8[] of these."""
    items = [value.to_bytes(8, "big", signed=True) for value in values]
    return BigIntArray(_header(_INT8, len(values)) + _joined(items))


def texts(values: Sequence[str | None]) -> TextArray:
    """A text[] of these."""
    items = [None if value is None else value.encode() for value in values]
    return TextArray(_header(_TEXT, len(values)) + _joined(items))


def blobs(values: Sequence[bytes | None]) -> BytesArray:
    """A bytea[] of these."""
    return BytesArray(_header(_BYTEA, len(values)) + _joined(values))


def _header(item_oid: int, count: int) -> bytes:
    return _HEADER.pack(1, 1, item_oid, count, 1)


def _joined(items: Iterable[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts += (_LENGTH.pack(len(item)), item)
    return b"".join(parts)


def _register(kind: type[_Array], array_oid: int) -> None:
    class ArrayDumper(Dumper):
        format = Format.BINARY
        oid = array_oid

        def dump(self, obj: Any) -> bytes:
            data: bytes = obj.data
            return data

    psycopg.adapters.register_dumper(kind, ArrayDumper)


_register(IntArray, 1007)
_register(BigIntArray, 1016)
_register(TextArray, 1009)
_register(BytesArray, 1001)
