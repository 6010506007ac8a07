"""Two connections show whether a pooler lends one server connection to both."""

from typing import Any, cast

import pytest

from onceward.errors import StoreBlocked
from onceward.store.postgres.session import SessionConnection, require_own_backends


class Pooler:
    """Runs each statement on the next of some server connections, for every client."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = iter(pids)

    async def execute(self, *_: object, **__: object) -> "Pooler":
        return self

    async def fetchall(self) -> list[dict[str, Any]]:
        return [{"pid": next(self._pids)}]


async def check(pids: list[int]) -> None:
    connection = cast(SessionConnection, Pooler(pids))
    await require_own_backends(connection, connection)


async def test_connections_that_keep_their_own_are_accepted() -> None:
    await check([1, 1, 2, 2, 1])


OTHER_BACKENDS: list[list[int]] = [
    [1, 1, 1, 1, 1],
    [1, 3, 2, 2, 1],
    [1, 1, 2, 3, 1],
    [1, 1, 2, 2, 3],
    [1, 1, 2, 2, 2],
]


async def test_a_transaction_on_any_other_one_is_refused(subtests: pytest.Subtests) -> None:
    for pids in OTHER_BACKENDS:
        with (
            subtests.test(pids=pids),
            pytest.raises(StoreBlocked, match="pool_mode = session"),
        ):
            await check(pids)
