"""The contenders: what each one is, what it needs, and how it is set up."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from bench.contenders.interface import OWN, SHARED, TransactionMode
from bench.redis_server import find_redis

INGEST, PROCESS, LATENCY = "ingest", "process", "latency"
CRASH_RECEIVING, CRASH_WORKING = "crash receiving", "crash working"
POSTGRES, SQLITE = STORES = ("postgres", "sqlite")

OURS, WORKING, OURS_OWN, OURS_SHARED = "ours", "working", "ours-own", "ours-shared"
EMPTY, ONCONFLICT, ONCONFLICT_ASYNCPG = "empty", "onconflict", "onconflict-asyncpg"
LOOPS = LOOP, LOOP_ASYNCPG = "handwritten", "handwritten-asyncpg"
BATCH_LOOPS = LOOP_BATCH, LOOP_ASYNCPG_BATCH = "handwritten-batch", "handwritten-asyncpg-batch"
PGQUEUER, DBOS = "pgqueuer", "dbos"

CONCURRENCY = 8
BATCH_SIZE = 64
BATCH_JOBS = 40_000
"""Jobs that a batch commits together: Onceward's default for a shared transaction."""


@dataclass(frozen=True)
class Entry:
    """One contender in one set-up."""

    name: str
    title: str
    module: str
    measures: frozenset[str]
    needs: tuple[str, ...] = ()
    stores: frozenset[str] = frozenset({POSTGRES})
    concurrency: int = CONCURRENCY
    transaction: TransactionMode = OWN
    batch_size: int = 1
    is_working: bool = False
    jobs: int = 20_000
    uses_redis: bool = False
    is_redis_durable: bool = True

    def why_not(self) -> str | None:
        """Why it cannot run here; None if it can."""
        if self.uses_redis and find_redis() is None:
            return "no Redis"
        missing = [package for package in self.needs if find_spec(package) is None]
        return f"{' and '.join(missing)} not installed" if missing else None


def _entry(name: str, title: str, *measures: str, module: str = "", **more: object) -> Entry:
    return Entry(name, title, module or name, frozenset(measures), **more)  # type: ignore[arg-type]


BOTH = frozenset(STORES)
ONLY_SQLITE = frozenset({SQLITE})
RECIPE = ("fastapi",)
ASYNCPG_RECIPE = ("fastapi", "asyncpg")
WHOLE = (INGEST, PROCESS, LATENCY, CRASH_RECEIVING, CRASH_WORKING)

ONCEWARD = (
    _entry(OURS, "Onceward", INGEST, CRASH_RECEIVING, stores=BOTH),
    _entry(WORKING, "Onceward, its worker at work", INGEST, module="ours", stores=BOTH,
           is_working=True),
    *(
        _entry(name, f"Onceward, {transaction} transactions", PROCESS, LATENCY, CRASH_WORKING,
               module="ours", stores=BOTH, transaction=transaction, jobs=BATCH_JOBS)
        for name, transaction in ((OURS_OWN, OWN), (OURS_SHARED, SHARED))
    ),
)  # fmt: skip

RECIPES = (
    _entry("check", "FastAPI, check, then insert", INGEST, CRASH_RECEIVING, needs=RECIPE),
    _entry(ONCONFLICT, "FastAPI, INSERT … ON CONFLICT, psycopg", INGEST, CRASH_RECEIVING,
           module="handwritten", needs=RECIPE),
    _entry(ONCONFLICT_ASYNCPG, "FastAPI, INSERT … ON CONFLICT, asyncpg", INGEST,
           module="handwritten_asyncpg", needs=ASYNCPG_RECIPE),
    _entry("onconflict-sqlite", "FastAPI, INSERT … ON CONFLICT", INGEST,
           module="sqlite_recipe", needs=RECIPE, stores=ONLY_SQLITE),
    _entry(LOOP, "SKIP LOCKED loop, psycopg, one a commit", PROCESS, LATENCY, CRASH_WORKING,
           module="handwritten", needs=RECIPE),
    _entry(LOOP_ASYNCPG, "SKIP LOCKED loop, asyncpg, one a commit", PROCESS,
           module="handwritten_asyncpg", needs=ASYNCPG_RECIPE),
    _entry(LOOP_BATCH, "SKIP LOCKED loop, psycopg, batches", PROCESS, CRASH_WORKING,
           module="handwritten", needs=RECIPE, batch_size=BATCH_SIZE, jobs=BATCH_JOBS),
    _entry(LOOP_ASYNCPG_BATCH, "SKIP LOCKED loop, asyncpg, batches", PROCESS,
           module="handwritten_asyncpg", needs=ASYNCPG_RECIPE, batch_size=BATCH_SIZE,
           jobs=BATCH_JOBS),
    _entry("handwritten-sqlite", "hand-written loop, one a commit", PROCESS, LATENCY,
           module="sqlite_recipe", needs=RECIPE, stores=ONLY_SQLITE),
    _entry("handwritten-sqlite-batch", "hand-written loop, batches", PROCESS,
           module="sqlite_recipe", needs=RECIPE, stores=ONLY_SQLITE, batch_size=BATCH_SIZE,
           jobs=5 * BATCH_JOBS),
)  # fmt: skip

PEERS = (
    _entry("procrastinate", "procrastinate", *WHOLE, needs=("fastapi", "procrastinate"),
           jobs=4_000),
    _entry(PGQUEUER, "PgQueuer", *WHOLE, needs=("fastapi", "pgqueuer", "asyncpg"),
           batch_size=BATCH_SIZE),
    _entry(DBOS, "DBOS", *WHOLE, needs=("fastapi", "dbos"), stores=BOTH, jobs=1_500),
    _entry("celery", "Celery, Redis with appendfsync always", *WHOLE,
           needs=("fastapi", "celery", "redis"), jobs=4_000, uses_redis=True),
    _entry("celery-default", "Celery, Redis with its default persistence", CRASH_RECEIVING,
           CRASH_WORKING, module="celery", needs=("fastapi", "celery", "redis"), jobs=4_000,
           uses_redis=True, is_redis_durable=False),
)  # fmt: skip

FIELD: Sequence[Entry] = (
    *ONCEWARD,
    *RECIPES,
    *PEERS,
    _entry(EMPTY, "the limit: an empty endpoint", INGEST, stores=BOTH),
)


def chosen(measure: str, store: str, only: Sequence[str]) -> list[Entry]:
    """The contenders of a measure; `only` has names, or beginnings of names."""
    return [
        entry
        for entry in FIELD
        if measure in entry.measures
        and store in entry.stores
        and (not only or any(entry.name.startswith(name) for name in only))
    ]
