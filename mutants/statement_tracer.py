"""Traces the names of the SQL statements that run."""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from onceward.runtime.sql_text import Sql
from onceward.store.postgres.prepared import PreparedMessage, PreparedStatement
from onceward.store.postgres.store import PostgresStore
from onceward.store.queries import Queries

Cover = Callable[[str], None]
Prepared = PreparedMessage | PreparedStatement


def trace_statements(cover: Cover, patch: pytest.MonkeyPatch) -> None:
    """Report each statement when it is composed, or when it is sent if a store prepares it.

    A condition is reported as ``name if condition``.
    """
    tracer = _Tracer(cover)
    patch.setattr(Queries, "__call__", tracer.composing(Queries.__call__))
    patch.setattr(PostgresStore, "__init__", tracer.constructing(PostgresStore.__init__))
    for prepared in (PreparedMessage, PreparedStatement):
        patch.setattr(prepared, "__init__", tracer.preparing(prepared.__init__))
    patch.setattr(PreparedMessage, "run", tracer.sending(PreparedMessage.run))
    patch.setattr(PreparedStatement, "bind", tracer.sending(PreparedStatement.bind))


class _Tracer:
    """Wraps the methods that compose, prepare and send statements."""

    def __init__(self, cover: Cover) -> None:
        self._cover = cover
        self._is_constructing = False
        """PostgresStore's constructor composes the statements that it may send later."""
        self._composed: dict[Sql, set[str]] = {}
        self._prepared: WeakKeyDictionary[Prepared, set[str]] = WeakKeyDictionary()

    def composing(self, compose: Callable[..., tuple[Sql, ...]]) -> Callable[..., Any]:
        def traced(queries: Queries, name: str, *conditions: str) -> tuple[Sql, ...]:
            names = {name, *(f"{name} if {each}" for each in conditions)}
            statements = compose(queries, name, *conditions)
            for statement in statements:
                self._composed.setdefault(statement, set()).update(names)
            if not self._is_constructing:
                self._cover_all(names)
            return statements

        return traced

    def constructing(self, construct: Callable[..., None]) -> Callable[..., None]:
        def traced(store: PostgresStore, *args: Any, **keywords: Any) -> None:
            self._is_constructing = True
            try:
                construct(store, *args, **keywords)
            finally:
                self._is_constructing = False

        return traced

    def preparing(self, prepare: Callable[..., None]) -> Callable[..., None]:
        def traced(
            prepared: Prepared, name: str, statements: Sql | Mapping[str, Iterable[Sql]]
        ) -> None:
            prepare(prepared, name, statements)
            several = {"": [statements]} if isinstance(statements, Sql) else statements
            found = chain.from_iterable(several.values())
            self._prepared[prepared] = set().union(*(self._composed.get(s, ()) for s in found))

        return traced

    def sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def traced(prepared: Prepared, *args: Any, without: Collection[str] = ()) -> Any:
            self._cover_all(self._prepared.get(prepared, set()).difference(without))
            return send(prepared, *args, **({"without": without} if without else {}))

        return traced

    def _cover_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._cover(name)
