"""A statement that outlives its handler is cancelled, and nothing of it is committed."""

import asyncio

from onceward.ports import Store
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import working

# They end at last, so that a test that fails does not hang.
SLOW = {
    "postgres": "SELECT pg_sleep(60)",
    "sqlite": (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT 1 FROM n LIMIT 99999999) "
        "SELECT sum(i) FROM n"
    ),
}


async def test_a_statement_that_still_runs_when_its_handler_ends_is_cancelled(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.rows("CREATE TABLE probes (event int)")
    async with asyncio.timeout(5):
        async with working(store) as work:
            await work.tx.execute("INSERT INTO probes VALUES (1)")
            slow = SLOW["sqlite" if raw_db.is_sqlite else "postgres"]
            straggler = asyncio.create_task(work.tx.fetch(slow))

            async def has_begun() -> bool:
                return work.unit._writer is straggler

            await eventually_async(has_begun, "the statement runs")
        assert straggler.cancelled()
        async with working(store) as work:  # its connection can be used again
            assert await work.tx.fetch_value("SELECT count(*) FROM probes") == 0
