"""Columns of a batch as PostgreSQL arrays in binary format.

psycopg writes arrays as text and escapes each item in Python. For a batch of bodies that took
longer than the insert. Here every item is handled in C, by `map` and `join`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Final

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

_INT4, _INT8, _TEXT, _BYTEA = 23, 20, 25, 17
_HEADER: Final = struct.Struct("!5i")
_LENGTH: Final = struct.Struct("!i")
_INT_ITEM: Final = struct.Struct("!ii")
_BIGINT_ITEM: Final = struct.Struct("!iq")
_NULL: Final = _LENGTH.pack(-1)


class _Array:
    """An array in the wire format."""

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
    """Return the values as an int4[]."""
    items = b"".join(map(_INT_ITEM.pack, repeat(4), values))
    return IntArray(_header(_INT4, len(values)) + items)


def bigints(values: Sequence[int]) -> BigIntArray:
    """Return the values as an int8[]."""
    items = b"".join(map(_BIGINT_ITEM.pack, repeat(8), values))
    return BigIntArray(_header(_INT8, len(values)) + items)


def texts(values: Sequence[str | None]) -> TextArray:
    """Return the values as a text[]."""
    if None in values:
        items = _nullable([None if value is None else value.encode() for value in values])
    else:
        items = _joined(list(map(str.encode, values)))  # type: ignore[arg-type] # there is no None
    return TextArray(_header(_TEXT, len(values)) + items)


def blobs(values: Sequence[bytes | None]) -> BytesArray:
    """Return the values as a bytea[]."""
    items = _nullable(values) if None in values else _joined(values)  # type: ignore[arg-type] # as above
    return BytesArray(_header(_BYTEA, len(values)) + items)


def _header(item_oid: int, count: int) -> bytes:
    return _HEADER.pack(1, 1, item_oid, count, 1)


def _joined(items: Sequence[bytes]) -> bytes:
    lengths = map(_LENGTH.pack, map(len, items))
    return b"".join(chain.from_iterable(zip(lengths, items, strict=True)))


def _nullable(items: Sequence[bytes | None]) -> bytes:
    return b"".join([_NULL if item is None else _joined((item,)) for item in items])


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        data: bytes = obj.data
        return data


class _IntArrayDumper(_ArrayDumper):
    oid = 1007


class _BigIntArrayDumper(_ArrayDumper):
    oid = 1016


class _TextArrayDumper(_ArrayDumper):
    oid = 1009


class _BytesArrayDumper(_ArrayDumper):
    oid = 1001


_DUMPERS: Final = {
    IntArray: _IntArrayDumper,
    BigIntArray: _BigIntArrayDumper,
    TextArray: _TextArrayDumper,
    BytesArray: _BytesArrayDumper,
}


def register_dumpers(context: AdaptContext) -> None:
    """Make a connection accept the arrays of this module as parameters."""
    for array, dumper in _DUMPERS.items():
        context.adapters.register_dumper(array, dumper)
