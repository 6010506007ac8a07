"""The internals of psycopg that `waiting` uses, and a check that they are as it expects them.

`driver` runs the check once in a process; the contract test runs it with the oldest and the newest
tested version. It needs no server.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import psycopg
from psycopg import errors, generators, pq, waiting

from onceward.store.postgres.waiting import FastWaitConnection

_PGCONN: Final = ("finish", "send_query", "socket", "transaction_status")
_PGRESULT: Final = ("command_status", "get_value", "nfields", "ntuples", "status")
_OVERRIDDEN: Final = {"close", "wait"}
_INVALID_ADDRESS: Final = b"="
"""libpq fails to parse it, and returns a connection that is closed."""


def broken_terms() -> list[str]:
    """Return the terms of the contract that the installed psycopg does not keep."""
    return [term for term, is_kept in CONTRACT.items() if not _succeeds(is_kept)]


def _succeeds(is_kept: Callable[[], bool]) -> bool:
    try:
        return is_kept()
    except Exception:  # noqa: BLE001 - changed internals may raise anything
        return False


def _wait_is_called_as_ours_expects() -> bool:
    ours, theirs = FastWaitConnection.wait, psycopg.AsyncConnection.wait
    names = list(_parameters(theirs))
    return (
        inspect.iscoroutinefunction(theirs)
        and names == list(_parameters(ours))[: len(names)]
        and _required(theirs) == _required(ours)
    )


def _close_takes_no_arguments() -> bool:
    theirs = psycopg.AsyncConnection.close
    return inspect.iscoroutinefunction(theirs) and list(_parameters(theirs)) == ["self"]


def _no_other_attribute_is_overridden() -> bool:
    own = {name for name in vars(FastWaitConnection) if not name.startswith("__")}
    theirs = psycopg.AsyncConnection[Any](_closed_pgconn())
    return own & set(dir(theirs)) == _OVERRIDDEN


def _wait_states_are_flags() -> bool:
    flags = (waiting.Wait, waiting.Ready)
    return all((int(flag.R), int(flag.W), int(flag.RW)) == (1, 2, 3) for flag in flags)


def _a_cancelled_statement_can_be_waited_for() -> bool:
    cancel, wait = psycopg.AsyncConnection.cancel_safe, waiting.wait_async
    return (
        inspect.iscoroutinefunction(cancel)
        and _required(cancel) == ["self"]
        and "timeout" in _parameters(cancel)
        and inspect.iscoroutinefunction(wait)
        and _required(wait) == ["gen", "fileno"]
        and "interval" in _parameters(wait)
        and "ACTIVE" in pq.TransactionStatus.__members__
    )


def _a_message_is_sent_without_a_cursor() -> bool:
    connection = FastWaitConnection(_closed_pgconn())
    try:
        next(generators.execute(connection.pgconn))
    except psycopg.OperationalError:  # it tried to send
        lock: object = connection.lock
        return (
            isinstance(lock, asyncio.Lock)
            and set(_PGCONN) <= set(dir(pq.PGconn))
            and set(_PGRESULT) <= set(dir(pq.PGresult))
            and {"TUPLES_OK", "FATAL_ERROR"} <= set(pq.ExecStatus.__members__)
            and {"result", "encoding"} <= _parameters(errors.error_from_result).keys()
        )
    return False


def _statements_are_deallocated_by_name() -> bool:
    """Prepare a statement, roll back, and collect what psycopg deallocates.

    DEALLOCATE ALL, for which None stands, would deallocate Onceward's statements as well.
    """
    connection = FastWaitConnection(_closed_pgconn())
    connection.prepare_threshold = 0
    statements = connection._prepared  # noqa: SLF001 - `waiting` replaces it
    query: Any = SimpleNamespace(query=b"SELECT 1", types=())
    should_prepare, name = statements.get(query)
    key = statements.maybe_add_to_cache(query, should_prepare, name)
    rollback: Any = SimpleNamespace(status=pq.ExecStatus.COMMAND_OK, command_status=b"ROLLBACK")
    if key is None or not name:
        return False
    statements.validate(key, should_prepare, name, [rollback])
    deallocated: list[bytes | None] = []

    def deallocate(statement: bytes | None) -> Iterator[None]:
        deallocated.append(statement)
        return iter(())

    recorder: Any = SimpleNamespace(_deallocate=deallocate)
    list(statements.maintain_gen(recorder))
    return deallocated == [name] and statements.get(query)[1] != name


def _closed_pgconn() -> pq.abc.PGconn:
    return pq.PGconn.connect_start(_INVALID_ADDRESS)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def _required(function: Callable[..., Any]) -> list[str]:
    parameters = _parameters(function).items()
    return [name for name, each in parameters if each.default is inspect.Parameter.empty]


CONTRACT: Final[dict[str, Callable[[], bool]]] = {
    "wait()": _wait_is_called_as_ours_expects,
    "close()": _close_takes_no_arguments,
    "attributes": _no_other_attribute_is_overridden,
    "wait states": _wait_states_are_flags,
    "cancellation": _a_cancelled_statement_can_be_waited_for,
    "messages": _a_message_is_sent_without_a_cursor,
    "prepared statements": _statements_are_deallocated_by_name,
}
"""What the warning calls each term, and its check."""
