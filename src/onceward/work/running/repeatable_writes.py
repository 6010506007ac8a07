"""Writes that may run twice: a row is set, never added to, and a state moves only forward."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import FrameType
from typing import Any, Final, TypeVar, overload

from onceward.errors import TransactionMisuse
from onceward.runtime.code_location import code_location
from onceward.runtime.value_kind import kind_of
from onceward.work.running.sync import SyncTransaction, wait_for
from onceward.work.running.transaction import Transaction, UnitOfWork

T = TypeVar("T")
Columns = Mapping[str, Any]

_NAME_BYTES: Final = 63
"""PostgreSQL cuts longer names, and finds another table."""
_MAX_COLUMNS: Final = 1_600
"""The columns that a table of PostgreSQL may have. The text of a statement with more takes long."""
_NO_SUCH_KEY: Final = "42P10"
"""PostgreSQL's code for a conflict target without a unique index."""
_NO_SUCH_KEY_TEXT: Final = "ON CONFLICT clause does not match"
"""The beginning of SQLite's message for the same."""


@overload
def upsert(
    tx: Transaction, table: str, key: Columns, values: Columns
) -> Coroutine[Any, Any, None]: ...
@overload
def upsert(tx: SyncTransaction, table: str, key: Columns, values: Columns) -> None: ...
def upsert(
    tx: Transaction | SyncTransaction, table: str, key: Columns, values: Columns
) -> Coroutine[Any, Any, None] | None:
    """Insert the row that has a key, or set its other columns. Running it twice changes nothing.

    `key` has the columns of a primary key or a unique index, and `values` the others. The names of
    columns, and of the table (``table`` or ``schema.table``), are quoted, and the values bound.
    Raise TransactionMisuse for what cannot work.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the handler's line
    return _run(tx, "upsert", lambda unit: _upsert(unit, table, key, values), frame)


@overload
def transition(
    tx: Transaction,
    table: str,
    id: Any,
    *,
    to: Any,
    only_from: Any,
    column: str = "status",
    id_column: str = "id",
) -> Coroutine[Any, Any, bool]: ...
@overload
def transition(
    tx: SyncTransaction,
    table: str,
    id: Any,
    *,
    to: Any,
    only_from: Any,
    column: str = "status",
    id_column: str = "id",
) -> bool: ...
def transition(
    tx: Transaction | SyncTransaction,
    table: str,
    id: Any,
    *,
    to: Any,
    only_from: Any,
    column: str = "status",
    id_column: str = "id",
) -> Coroutine[Any, Any, bool] | bool:
    """Move a row to another state, if it is in one of the states `only_from`, else do nothing.

    Return whether it moved: False for a row in another state, and for one that does not exist.
    `only_from` is a state or a collection of states. Names are quoted, and values bound. Raise
    TransactionMisuse for what cannot work.
    """
    states = list(only_from) if _is_several(only_from) else [only_from]
    frame = sys._getframe(1)  # noqa: SLF001 - the handler's line

    async def move(unit: UnitOfWork) -> bool:
        return await _transition(unit, table, (id_column, id), (column, states, to))

    return _run(tx, "transition", move, frame)


def _run(
    tx: Transaction | SyncTransaction,
    name: str,
    call: Callable[[UnitOfWork], Coroutine[Any, Any, T]],
    frame: FrameType,
) -> Coroutine[Any, Any, T] | T:
    """Return the call, for an async handler to await, or its result for a sync one."""
    if isinstance(tx, Transaction):
        unit = tx._unit  # noqa: SLF001 - a part of tx
        return unit.calls.note(name, call(unit), frame)
    if isinstance(tx, SyncTransaction):
        return wait_for(call(tx._unit), tx._loop)  # noqa: SLF001 - a part of tx
    raise TransactionMisuse(
        f"{code_location(frame.f_code, frame.f_lineno)}: {name}: the first argument is "
        f"{kind_of(tx)}; pass the handler's tx"
    )


async def _upsert(unit: UnitOfWork, table: str, key: Columns, values: Columns) -> None:
    if fault := _upsert_fault(table, key, values):
        unit._fail(f"upsert: {fault}")  # noqa: SLF001 - the errors of tx
    columns = {**key, **values}
    names = _parameter_names(columns)
    updates = ", ".join(f"{_quoted(each)} = excluded.{_quoted(each)}" for each in values)
    action = f"UPDATE SET {updates}" if updates else "NOTHING"
    sql = (
        f"INSERT INTO {_quoted_table(table)} ({_listed(columns)}) "  # noqa: S608 - names are quoted
        f"VALUES ({', '.join(f':{name}' for name in names.values())}) "
        f"ON CONFLICT ({_listed(key)}) DO {action}"
    )
    try:
        await unit.execute(sql, {names[column]: value for column, value in columns.items()})
    except Exception as error:
        if _is_missing_key(error):
            raise TransactionMisuse(f"{unit.location()}: {_missing_key(table, key)}") from error
        raise


async def _transition(
    unit: UnitOfWork, table: str, row: tuple[str, Any], move: tuple[str, list[Any], Any]
) -> bool:
    (id_column, identifier), (column, states, to) = row, move
    if fault := _transition_fault(table, row, move):
        unit._fail(f"transition: {fault}")  # noqa: SLF001 - the errors of tx
    # SQLite takes an unknown name in quotes for a text, unless a table precedes it.
    owner = _quoted(table.rpartition(".")[2])
    names = {f"state_{number}": state for number, state in enumerate(states)}
    listed = ", ".join(f":{name}" for name in names)
    count = await unit.execute(
        f"UPDATE {_quoted_table(table)} SET {_quoted(column)} = :to "  # noqa: S608 - names are quoted
        f"WHERE {owner}.{_quoted(id_column)} = :id AND {owner}.{_quoted(column)} IN ({listed})",
        {"to": to, "id": identifier, **names},
    )
    if count > 1:
        unit._fail(  # noqa: SLF001 - the errors of tx
            f"transition: {count} rows of {table} have this {id_column}; nothing is committed. "
            "Name the column that identifies a row in id_column="
        )
    return count == 1


def _upsert_fault(table: str, key: Columns, values: Columns) -> str | None:
    if fault := _columns_fault("key", key) or _columns_fault("values", values):
        return fault
    if not key:
        return "key has no column; name the columns of a unique key"
    if both := sorted(key.keys() & values.keys()):
        return f"key and values both have the column {both[0]}; remove it from values"
    if empty := next((column for column, value in key.items() if value is None), None):
        return f"the value of the key's column {empty} is None, which no unique key finds again"
    return _table_fault(table)


def _columns_fault(option: str, columns: object) -> str | None:
    if not isinstance(columns, Mapping):
        return f"{option} is {kind_of(columns)}; pass a dict of columns and values"
    if len(columns) > _MAX_COLUMNS:
        return f"{option} has {len(columns)} columns; the limit is {_MAX_COLUMNS}"
    fault = next(filter(None, map(_name_fault, columns)), None)
    return fault and f"a column in {option} {fault}"


def _transition_fault(
    table: object, row: tuple[object, Any], move: tuple[object, list[Any], Any]
) -> str | None:
    (id_column, identifier), (column, states, to) = row, move
    for option, name in (("column", column), ("id_column", id_column)):
        if fault := _name_fault(name):
            return f"{option} {fault}"
    if identifier is None:
        return "id is None, which no row has"
    if _is_several(identifier):
        return f"id is {kind_of(identifier)}; pass the value of the row's {id_column}"
    return _states_fault(states, to) or _table_fault(table)


def _states_fault(states: list[Any], to: Any) -> str | None:
    if to is None or _is_several(to):
        return f"to is {kind_of(to)}; pass one state"
    if not states:
        return "only_from is empty; name the states that may move"
    if None in states:
        return "only_from contains None, which is no state; give the column a default"
    if to in states:
        return "to is also in only_from, so that every repetition would move; remove it there"
    return None


def _table_fault(table: object) -> str | None:
    if not isinstance(table, str):
        return f"the table is {kind_of(table)}; pass its name"
    parts = table.split(".")
    if len(parts) > 2:  # noqa: PLR2004 - schema and table
        return "the table has more than one dot; write table, or schema.table"
    fault = next(filter(None, map(_name_fault, parts)), None)
    return fault and f"the table {fault}"


def _name_fault(name: object) -> str | None:
    if not isinstance(name, str):
        return f"is {kind_of(name)}; pass its name"
    if not name or "\0" in name:
        return "has an empty name" if not name else "has a NUL in its name"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "has a name that is not valid Unicode"
    if length > _NAME_BYTES:
        return f"has a name of {length} bytes; the limit is {_NAME_BYTES}"
    return None


def _is_several(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted_table(table: str) -> str:
    return ".".join(map(_quoted, table.split(".")))


def _listed(columns: Columns) -> str:
    return ", ".join(map(_quoted, columns))


def _parameter_names(columns: Columns) -> dict[str, str]:
    """Return a parameter for each column: its name, which errors show, if all can be one."""
    if all(column.isascii() and column.isidentifier() for column in columns):
        return {column: column for column in columns}
    return {column: f"value_{number}" for number, column in enumerate(columns)}


def _is_missing_key(error: Exception) -> bool:
    return getattr(error, "sqlstate", None) == _NO_SUCH_KEY or _NO_SUCH_KEY_TEXT in str(error)


def _missing_key(table: str, key: Columns) -> str:
    columns = ", ".join(key)
    name = "_".join([table.rpartition(".")[2], *key, "key"])
    return (
        f"upsert: {table} has no unique key on ({columns}), so that it could insert a row twice; "
        f"add one: CREATE UNIQUE INDEX {name} ON {table} ({columns})"
    )
