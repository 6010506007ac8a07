"""Statements whose plans the session keeps, for messages of several statements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
    """Statements that run in one transaction, sent as one message.

    The server runs the whole message even if this process freezes after sending it, so that no
    lock stays behind. A pipeline would hold its locks until the last part is sent. Planning the
    statements of a claim anew would take longer than running them.
    """

    def __init__(self, name: str, statements: Iterable[Sql]) -> None:
        prepare, execute = [], []
        for number, statement in enumerate(statements):
            prepared = f"onceward_{name}_{number}".encode()
            names = list(dict.fromkeys(_PARAMETER.findall(statement.pyformat)))
            if not names:  # a lock needs no plan
                execute.append(statement.pyformat)
                continue
            prepare.append(b"PREPARE " + prepared + b" AS " + _numbered(statement, names))
            arguments = b", ".join(b"%(" + each + b")s" for each in names)
            execute.append(b"EXECUTE " + prepared + b"(" + arguments + b")")
        self._prepare = b";\n".join(prepare)
        self._execute = b";\n".join(execute)
        self._connections: WeakSet[Connection] = WeakSet()
        """The connections that have prepared the statements."""

    async def run(self, connection: Connection, parameters: Mapping[str, Any]) -> list[list[Row]]:
        """Run the statements and return the rows of each."""
        if connection not in self._connections:
            await _prepare(connection, self._prepare)
            self._connections.add(connection)
        cursor = psycopg.AsyncClientCursor(connection)
        await cursor.execute(self._execute, parameters)
        rows = []
        has_more: bool | None = True
        while has_more:
            rows.append(await cursor.fetchall() if cursor.description else [])
            has_more = cursor.nextset()
        return rows


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
