"""PostgreSQL alone: the transaction of inline handlers beside triggers, sessions and restores."""

from contextlib import suppress
from typing import Any

import pytest

from onceward.errors import NotSettled, StoreError, TransactionMisuse
from onceward.model.jobs import JobStatus
from onceward.runtime.sql_text import parse
from onceward.store.postgres import connections
from onceward.store.postgres import inline as postgres_inline
from support.database import RawDatabase
from tests.conformance.test_altered_rows import add_trigger, refuse_settlements
from tests.conformance.test_inline import NEW, customers, handled, only_job
from tests.factories import EVERYTHING, arrival, opened, processing


async def test_what_the_last_holder_of_the_lock_committed_is_seen(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        run = connections.run

        async def run_after_commit(*arguments: Any) -> Any:
            monkeypatch.setattr(postgres_inline, "run", run)
            async with processing(first, arrival()) as transaction:
                await transaction.settle_inline([arrival()], [NEW])
                await transaction.commit()
            return await run(*arguments)

        async def run_locks_late(connection: Any, statement: Any, *more: Any) -> Any:
            takes_locks = statement is postgres_inline._TRY_LOCKS
            return await (run_after_commit if takes_locks else run)(connection, statement, *more)

        monkeypatch.setattr(postgres_inline, "run", run_locks_late)
        async with second.lock_events([arrival()]) as events:
            (event,) = events.view.events
    assert event is not None
    assert [job.status for job in event.jobs] == [JobStatus.DONE]


async def test_a_setting_that_a_handler_leaves_behind_ends_with_its_request(
    postgres_url: str,
) -> None:
    show = parse("SHOW work_mem")[0]
    async with opened(postgres_url, inline_requests=1) as store:
        async with processing(store, arrival()) as transaction:
            before = (await transaction.run(show, {})).rows
            await transaction.run(parse("SET work_mem = '77MB'")[0], {})
            await transaction.settle_inline([arrival()], [NEW])
            await transaction.commit()
        async with processing(store, arrival("evt_2")) as transaction:
            assert (await transaction.run(show, {})).rows == before


async def test_a_trigger_that_keeps_a_job_from_being_done_is_noticed(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE accounts (customer text)")
    async with opened(postgres_url) as store:
        refuse_settlements(raw_db, "NEW.status := OLD.status; RETURN NEW;")
        async with handled(store) as transaction:
            with pytest.raises(NotSettled, match="trigger"):
                await transaction.settle_inline([arrival()], [NEW])
        assert await store.events(EVERYTHING) == []
    assert customers(raw_db) == []


async def test_nothing_is_recorded_after_a_handler_has_ended_the_transaction(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE accounts (customer text)")
    async with opened(postgres_url) as store:
        async with handled(store) as transaction:
            await transaction.run(parse("ROLLBACK AND CHAIN")[0], {})
            with pytest.raises(TransactionMisuse):
                await transaction.settle_inline([arrival()], [NEW])
        assert await store.events(EVERYTHING) == []


async def test_a_ledger_that_was_restored_in_place_is_registered_by_the_next_request(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        async with store.lock_events([arrival()]):
            pass  # its connection has registered
        raw_db.rows("TRUNCATE onceward.routes, onceward.handlers, onceward.sources CASCADE")
        for _ in range(2):
            with suppress(StoreError, NotSettled):
                async with processing(store, arrival()) as transaction:
                    await transaction.settle_inline([arrival()], [NEW])
                    await transaction.commit()
        assert (await only_job(store)).status is JobStatus.DONE


async def test_the_statements_of_onceward_ignore_the_settings_of_the_handler(
    postgres_url: str,
) -> None:
    """A bitmap scan would lock them in their physical order, and could deadlock."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        add_trigger(
            raw_db,
            "events",
            "IF current_setting('enable_bitmapscan') = 'on' THEN "
            "RAISE EXCEPTION 'bitmap scans are on'; END IF; RETURN NEW;",
        )
        async with processing(store, arrival()) as transaction:
            await transaction.run(parse("SET enable_bitmapscan = on")[0], {})
            await transaction.settle_inline([arrival()], [NEW])
            shown = await transaction.run(parse("SHOW enable_bitmapscan")[0], {})
            await transaction.commit()
    assert shown.rows == [{"enable_bitmapscan": "on"}]
