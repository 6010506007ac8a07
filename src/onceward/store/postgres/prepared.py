"""Statements whose plans the session keeps, for messages of several statements."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final
from weakref import WeakSet

import psycopg

from onceward.ports import Row
from onceward.runtime.sql_text import Sql
from onceward.store.postgres.connections import Connection
from onceward.store.postgres.pool import drop
from onceward.store.postgres.session import literal

_PARAMETER: Final = re.compile(rb"%\((\w+)\)s")


class PreparedMessage:
    """Named statements that run in one transaction, sent as one message: all, or some of them.

    The server runs the whole message even if this process freezes after sending it, so that no
    lock stays behind. A pipeline would hold its locks until the last part is sent. Planning the
    statements of a claim anew would take longer than running them.
    """

    def __init__(self, name: str, statements: Mapping[str, Sequence[Sql]]) -> None:
        prepare: list[bytes] = []
        self._execute: dict[str, list[bytes]] = {part: [] for part in statements}
        for part, statement in _flat(statements):
            names = list(dict.fromkeys(_PARAMETER.findall(statement.pyformat)))
            if not names:  # a lock needs no plan
                self._execute[part].append(statement.pyformat)
                continue
            prepared = f"onceward_{name}_{len(prepare)}".encode()
            prepare.append(b"PREPARE " + prepared + b" AS " + _numbered(statement, names))
            arguments = b", ".join(b"%(" + each + b")s" for each in names)
            self._execute[part].append(b"EXECUTE " + prepared + b"(" + arguments + b")")
        self._prepare = b";\n".join(prepare)
        self._connections: WeakSet[Connection] = WeakSet()
        """The connections that have prepared the statements."""

    async def run(
        self,
        connection: Connection,
        parameters: Mapping[str, Any],
        *,
        without: Collection[str] = (),
    ) -> dict[str, list[Row]]:
        """Run the statements, and return the rows of the last one under each name."""
        if connection not in self._connections:
            await _prepare(connection, self._prepare)
            self._connections.add(connection)
        parts = {name: texts for name, texts in self._execute.items() if name not in without}
        cursor = psycopg.AsyncClientCursor(connection)
        await cursor.execute(b";\n".join(chain.from_iterable(parts.values())), parameters)
        rows: dict[str, list[Row]] = {}
        for name, texts in parts.items():
            for _ in texts:
                rows[name] = await cursor.fetchall() if cursor.description else []
                cursor.nextset()
        return rows


def _flat(statements: Mapping[str, Sequence[Sql]]) -> Iterator[tuple[str, Sql]]:
    return ((name, statement) for name, several in statements.items() for statement in several)


class PreparedStatement:
    """A statement in the messages of handlers' transactions. Its values are texts.

    It is prepared in such a transaction: another search_path would make every plan anew.
    """

    def __init__(self, name: str, statement: Sql) -> None:
        self._names = list(dict.fromkeys(_PARAMETER.findall(statement.pyformat)))
        prepared = f"onceward_{name}".encode()
        self._prepare = b"PREPARE " + prepared + b" AS " + _numbered(statement, self._names)
        self._execute = b"EXECUTE " + prepared
        self._connections: WeakSet[Connection] = WeakSet()

    def is_prepared(self, connection: Connection) -> bool:
        """Return whether a connection has prepared the statement."""
        return connection in self._connections

    async def prepare(self, connection: Connection) -> None:
        """Prepare the statement, unless the connection has."""
        if connection not in self._connections:
            await _prepare(connection, self._prepare)
            self._connections.add(connection)

    def bind(self, values: Mapping[str, str | None]) -> bytes:
        """Return the statement with its values. Raise psycopg.DataError for a NUL."""
        literals = [literal(values[name.decode()]) for name in self._names]
        return self._execute + f"({', '.join(literals)})".encode()


async def _prepare(connection: Connection, message: bytes) -> None:
    try:
        await connection.exchange(message)
    except BaseException:
        drop(connection)  # some of the statements may be prepared: a repetition would fail
        raise


def _numbered(statement: Sql, names: list[bytes]) -> bytes:
    """Return a statement with ``$1`` for its first parameter, and so on."""
    numbered = _PARAMETER.sub(
        lambda match: b"$%d" % (names.index(match[1]) + 1), statement.pyformat
    )
    return numbered.replace(b"%%", b"%")
