"""Messages of several statements whose plans the session keeps."""

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
            await self._prepare_on(connection)
        cursor = psycopg.AsyncClientCursor(connection)
        await cursor.execute(self._execute, parameters)
        rows = []
        has_more: bool | None = True
        while has_more:
            rows.append(await cursor.fetchall() if cursor.description else [])
            has_more = cursor.nextset()
        return rows

    async def _prepare_on(self, connection: Connection) -> None:
        try:
            await connection.execute(self._prepare, prepare=False)
        except BaseException:
            drop(connection)  # some of the statements may be prepared: a repetition would fail
            raise
        self._connections.add(connection)


def _numbered(statement: Sql, names: list[bytes]) -> bytes:
    """Return a statement with ``$1`` for its first parameter, and so on."""
    numbered = _PARAMETER.sub(
        lambda match: b"$%d" % (names.index(match[1]) + 1), statement.pyformat
    )
    return numbered.replace(b"%%", b"%")
