"""Payloads are partitioned by week, and a claim touches only the weeks of its jobs."""

from datetime import timedelta

import pytest
from psycopg.rows import dict_row

from onceward.store.postgres.session import SessionConnection
from onceward.store.postgres.store import PostgresStore
from support.database import RawDatabase
from tests.factories import arrival, arrivals, lease, opened, record

PARTITIONS = """
    DO $$ BEGIN
        FOR week IN 1..100 LOOP
            EXECUTE format(
                'CREATE TABLE onceward.payloads_empty_%s PARTITION OF onceward.payloads '
                'FOR VALUES FROM (%L) TO (%L)',
                week, timestamptz '2001-01-01Z' + week * interval '1 week',
                timestamptz '2001-01-08Z' + week * interval '1 week'
            );
        END LOOP;
    END $$
"""


async def test_loading_jobs_locks_no_partition_of_another_week(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        assert isinstance(store, PostgresStore)
        RawDatabase(postgres_url).rows(PARTITIONS)
        await record(store, *arrivals(3))
        # This connection loads the jobs again, as the claim did, and keeps its locks.
        options = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
        connection = await SessionConnection.connect(
            postgres_url, options=options, row_factory=dict_row
        )
        leased = await lease(store)
        times = [job.received_at for job in leased.jobs]
        ids = [job.id for job in leased.jobs]
        jobs = await store._load(connection, ids, oldest=min(times), newest=max(times))
        locks = await connection.execute(
            "SELECT relation::regclass::text AS name FROM pg_locks WHERE pid = pg_backend_pid() "
            "AND relation::regclass::text LIKE 'onceward.payloads%'"
        )
        names = {row["name"] for row in await locks.fetchall()}
        await connection.close()
    assert jobs == leased.jobs
    assert all(job.body == b"{}" for job in jobs)
    partition = f"onceward.payloads_{times[0] - timedelta(days=times[0].weekday()):%Y%m%d}"
    assert names == {"onceward.payloads", partition, f"{partition}_pkey"}


@pytest.mark.parametrize("weeks", [-9, 0, 9])
async def test_jobs_of_any_week_are_loaded_with_their_payloads(
    postgres_url: str, weeks: int
) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, *arrivals(3))
        shift = f"received_at = received_at + {weeks} * interval '1 week'"
        for table in ("events", "payloads", "jobs"):
            raw_db.rows(f"UPDATE onceward.{table} SET {shift}")  # noqa: S608 - no outside data
        await record(store, arrival("now"))
        leased = await lease(store)
    assert [job.body for job in leased.jobs] == [b"{}"] * 4
