"""Plans made on empty tables and kept by a connection must do for large tables."""

import re
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pytest

from onceward.store.postgres.arrays import bigints, blobs, ints, register_dumpers, texts
from onceward.store.postgres.plan_settings import CLAIMING, KEEP_PLANS, RECORDING, SETTLING
from onceward.store.postgres.recording import _conditions
from onceward.store.queries import Queries
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import arrivals, lease, opened, record, working

BATCH: Final = {
    "sources": ints([1, 1]),
    "event_ids": texts(["a", "b"]),
    "types": texts(["t", "t"]),
    "references": texts([None, "r"]),
    "sha256s": blobs([b"1", b"2"]),
    "headers": blobs([b"{}", b"{}"]),
    "bodies": blobs([b"{}", b"{}"]),
    "events": bigints([1, 2]),
    "counts": ints([1, 1]),
    "row_limit": 100,
    "schema": 1000,
}
RULES: Final = {
    "rules": ints([1, 2]),
    "covered_sha256s": blobs([b"1", b"2"]),
    "held_error": "x",
}
KEYS: Final = {
    "key_positions": bigints([1, 2]),
    "key_paths": texts(["id", "id"]),
    "keys": texts(["a", None]),
}
FILTERS: Final = {
    "verdict_positions": bigints([1, 2]),
    "filters": texts(["{}", "{}"]),
    "verdicts": ints([1, 0]),
}
REVIEWED: Final = {"reviewed": ints([1, 0])}
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
WORK: Final = {
    "token": "t",
    "worker": "w",
    "handlers": [1],
    "wanted": [9],
    "fresh_floors": [NOW],
    "retried_floors": [NOW],
    "lease_floor": 1,
    "late_seconds": 2.0,
    "schema": 1000,
    "grace_seconds": 2.0,
    "watch_seconds": 1.0,
    "burst_seconds": 0.1,
    "min_look": 32,
    "namespace": 1,
    "owner": 1,
    "slots": 4,
    "settled": [1, 2],
    "limit": 9,
    "solo": False,
    "lease_seconds": 60.0,
    "jobs": [1, 2],
    "job": 1,
    "inline_bytes": 1000,
    "status": "queued",
    "failure_type": None,
    "delay_seconds": 1.0,
    "base_seconds": 1.0,
    "max_seconds": 3600.0,
    "elapsed_seconds": 1.0,
    "error": "x",
    "died_again": "x",
    "traceback": "",
    "effect": None,
}
CALL_STATEMENTS: Final = (
    "start_call",
    "restart_call",
    "load_call",
    "withdraw_call",
    "record_success",
    "record_not_applied",
    "record_unknown",
    "interrupt_calls",
)
CALLS: Final = {
    "token": "t",
    "job": 1,
    "key": "charge:1",
    "reference": None,
    "function": "charge",
    "timeout_seconds": 10.0,
    "nonce": "n",
    "id": 1,
    "call_no": 1,
    "window_seconds": 60.0,
    "result": None,
    "error_message": None,
}
LARGE: Final = (
    "events",
    "jobs",
    "deliveries",
    "payloads",
    "attempts",
    "leases",
    "effects",
    "watermarks",
)


def plan(
    url: str, name: str, parameters: dict[str, Any], verb: str = "EXPLAIN ", **session: str
) -> str:
    """Return the plan that a connection keeps for a statement, independent of the parameters."""
    statements = Queries("postgres")(name, *_conditions(parameters))
    session = {"plan_cache_mode": "force_generic_plan"} | session
    with psycopg.connect(url) as connection:
        register_dumpers(connection)
        for setting in session.items():
            connection.execute("SELECT set_config(%s, %s, false)", setting)
        plans = [
            connection.execute(verb.encode() + statement.pyformat, parameters).fetchall()
            for statement in statements
        ]
        return "\n".join(line for rows in plans for (line,) in rows)


HOT_PATHS: Final[tuple[tuple[str, dict[str, Any], dict[str, str]], ...]] = (
    ("record_new", BATCH, RECORDING),
    ("record_new", BATCH | RULES, RECORDING),
    ("record_new", BATCH | KEYS, RECORDING),
    ("record_new", BATCH | RULES | KEYS, RECORDING),
    ("record_new", BATCH | FILTERS, RECORDING),
    ("record_new", BATCH | REVIEWED, RECORDING),
    ("record_new", BATCH | RULES | KEYS | FILTERS | REVIEWED, RECORDING),
    ("record_duplicates", BATCH, RECORDING),
    ("record_redeliveries", BATCH, RECORDING),
    ("reclaim", WORK, CLAIMING),
    ("wake_keys", WORK, CLAIMING),
    ("claim", WORK, CLAIMING),
    ("next_due", WORK, CLAIMING),
    ("load_jobs", WORK, CLAIMING),
    ("settle_done", WORK, SETTLING),
    ("settle_error", WORK, SETTLING),
    ("postpone", WORK, SETTLING),
    ("ignore", WORK, SETTLING),
    ("release", WORK, CLAIMING),
    ("renew", WORK | {"tokens": ["t"]}, CLAIMING),
    ("end_leases", {"tokens": ["t"]}, CLAIMING),
    *((name, CALLS, KEEP_PLANS) for name in CALL_STATEMENTS),
    ("wake_parked", {"after": 0, "limit": 1000}, CLAIMING),
    ("wake_key", {"handler": 1, "ordering_key": "x"}, CLAIMING),
)


def test_no_kept_plan_reads_a_whole_table(postgres_url: str, subtests: pytest.Subtests) -> None:
    """The planner takes a table that was never vacuumed for one of ten pages."""
    for state in ("new", "vacuumed"):
        if state == "vacuumed":
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
        for number, (name, parameters, session) in enumerate(HOT_PATHS):
            with subtests.test(f"{name} {number} on {state} tables"):
                check_plan(name, plan(postgres_url, name, parameters, **session))


def check_plan(name: str, kept: str) -> None:
    whole = whole_reads(kept)
    if name == "wake_parked":  # four times a minute; there are few leases
        whole = [scan for scan in whole if "on leases" not in scan]
    assert whole == [], kept
    if name.startswith(("settle", "postpone", "reclaim", "wake_keys")):
        assert "jobs_due" not in kept
    if name in ("record_duplicates", "record_redeliveries"):
        assert "Bitmap Heap Scan on events" not in kept, "rows are not locked in order of id"
    if name == "record_new":
        assert "Join Filter: (arrived" not in kept, "every row is compared with every other"


def whole_reads(kept: str) -> list[str]:
    """Return the scans of large tables that no condition on an index limits."""
    lines = [line.strip() for line in kept.splitlines()]
    scans = re.compile(rf"Scan(?: using \w+)? on (?:{'|'.join(LARGE)})\b")
    return [
        line
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if scans.search(line) and "Bitmap" not in line and not following.startswith("Index Cond")
    ]


async def test_a_reclaim_does_not_read_the_backlog(
    postgres_url: str,
) -> None:
    """Collect the statistics while nothing is queued, so that they mislead the planner."""
    async with opened(postgres_url) as store:
        await record(store, *arrivals(300))
        leased = await lease(store, limit=300)
        assert await store.settle_done(leased.token, *(job.id for job in leased.jobs))
        RawDatabase(postgres_url).rows("ANALYZE onceward.jobs")
        await record(store, *arrivals(3000, prefix="waiting"))
    actual = plan(postgres_url, "reclaim", WORK, "EXPLAIN ANALYZE ", **CLAIMING)
    read = re.findall(r" on jobs.*actual time=\S+ rows=(\d+) loops=[1-9]", actual)
    assert sum(map(int, read)) == 0, actual


async def test_the_jobs_of_a_young_ledger_are_found_by_their_keys(postgres_url: str) -> None:
    """The plans are made while the tables are small, and kept."""
    raw_db = RawDatabase(postgres_url)
    rounds, jobs = 30, 10
    async with opened(postgres_url) as store:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        for number in range(rounds):
            await record(store, *arrivals(jobs, prefix=str(number)))
            leased = await lease(store, limit=jobs)
            for job in leased.jobs:
                async with working(store) as work:
                    await work.tx.execute("SELECT 1")
                    assert await work.unit.settle(leased.token, job.id)
            await store.end_leases([leased.token])

    async def are_all_closed() -> bool:
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        return bool(raw_db.value(sessions) == 1)

    await eventually_async(are_all_closed, "the sessions have written their statistics")
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'jobs'"
    assert raw_db.value(read) < 20 * rounds * jobs


INDEXED: Final = {
    "unrouted_types": ({"after": 5, "limit": 1000}, "events_unrouted"),
    "events_in_review": ({"limit": 1000}, "events_in_review"),
}


async def test_the_few_events_without_a_handler_are_read_by_their_index(
    database_url: str, subtests: pytest.Subtests
) -> None:
    raw_db = RawDatabase(database_url)
    unwanted = [each._replace(reviewed=True) for each in arrivals(20, type="unwanted", prefix="u")]
    async with opened(database_url) as store:
        await record(store, *arrivals(4000), *unwanted)
    if not raw_db.is_sqlite:
        for state in ("new", "analyzed"):
            if state == "analyzed":
                raw_db.rows("ANALYZE onceward.events")
            for name, (parameters, index) in INDEXED.items():
                with subtests.test(f"{name} on a table that is {state}"):
                    assert index in plan(database_url, name, parameters)
        return
    for name, (parameters, index) in INDEXED.items():
        statement = Queries("sqlite").one(name).text
        with subtests.test(name), raw_db.connection() as connection:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            steps = [step for _, _, _, step in rows]
            assert any(f"INDEX onceward_{index}" in step for step in steps), steps
