"""The registry of contenders, with the benchmarks and the settings of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from bench.contenders.interface import OWN, SHARED, TransactionMode
from support.redis import DURABLE, IN_MEMORY, find_redis

POSTGRES, SQLITE = STORES = ("postgres", "sqlite")
STORE_TITLES = {POSTGRES: "PostgreSQL", SQLITE: "SQLite"}

INGEST, RECEIVE, PROCESS, LATENCY = "ingest", "receive", "process", "latency"
SHAPES = "shapes"
CRASH_RECEIVE, CRASH_WORK = "crash-receive", "crash-work"
RECOVERY, RECOVERY_RESTARTED, FAIRNESS = "recovery", "recovery-restarted", "fairness"
STORM = "storm"

ONCEWARD, ONCEWARD_WITH_WORKER = "onceward", "onceward-with-worker"
ONCEWARD_OWN, ONCEWARD_SHARED = "onceward-own", "onceward-shared"
ONCEWARD_FLEET, ONCEWARD_FLEET_REDIS = "onceward-fleet", "onceward-fleet-redis"
ON_CONFLICT, ON_CONFLICT_ASYNCPG = "on-conflict-psycopg", "on-conflict-asyncpg"
SINGLE_LOOPS = ("loop-psycopg", "loop-asyncpg")
BATCH_LOOPS = ("loop-psycopg-batch", "loop-asyncpg-batch")
SHAPES_LOOP, SHAPES_LOOP_ASYNCPG = "loop-psycopg-shapes", "loop-asyncpg-shapes"
IN_REQUEST = "in-request"
NEIGHBOURS_LOOP, SEPARATE_LOOPS = "loop-neighbours", "loops-separate"
PGQUEUER, DBOS = "pgqueuer", "dbos"
EMPTY_ENDPOINT, BARE_PROTOCOL = LIMITS = ("empty-endpoint", "bare-protocol")

CONCURRENCY = 8
BATCH_SIZE = 64
"""Jobs that one batch commits: Onceward's default for a shared transaction."""

JOBS = 20_000
MANY_JOBS = 40_000

# The contents of one commit, for the tables.
SINGLE = "handler and done, 1 job"
BATCH = f"handler and done, up to {BATCH_SIZE} jobs"
SEPARATE = "handler alone"
CHECKPOINT = "handler and checkpoint"


@dataclass(frozen=True)
class Contender:
    """One system in one configuration."""

    name: str
    title: str
    module: str
    benchmarks: frozenset[str]
    commit: str = ""
    """The contents of one commit of its worker."""
    requires: tuple[str, ...] = ()
    stores: frozenset[str] = frozenset({POSTGRES})
    concurrency: int = CONCURRENCY
    transaction: TransactionMode = OWN
    batch_size: int = 1
    has_worker: bool = False
    jobs: int = JOBS
    """Jobs to queue: enough for the time of a trial."""
    has_database: bool = True
    has_redis: bool = False
    redis_options: tuple[str, ...] = DURABLE

    @property
    def is_onceward(self) -> bool:
        """Whether the contender is Onceward in one of its configurations."""
        return self.module == "onceward"

    def missing_requirement(self) -> str | None:
        """Return why the contender cannot run here, or None."""
        if self.has_redis and find_redis() is None:
            return "Redis is not installed"
        missing = [package for package in self.requires if find_spec(package) is None]
        return f"{' and '.join(missing)} not installed" if missing else None


def _contender(name: str, title: str, *benchmarks: str, module: str, **more: object) -> Contender:
    return Contender(name, title, module, frozenset(benchmarks), **more)  # type: ignore[arg-type]


_BOTH_STORES = frozenset(STORES)
_SQLITE_ONLY = frozenset({SQLITE})
_ALL = (INGEST, PROCESS, LATENCY, CRASH_RECEIVE, CRASH_WORK, RECOVERY)

_ONCEWARD = (
    _contender(ONCEWARD, "Onceward", INGEST, RECEIVE, CRASH_RECEIVE, module="onceward",
               stores=_BOTH_STORES),
    _contender(ONCEWARD_WITH_WORKER, "Onceward, handlers in the same process", INGEST,
               module="onceward", stores=_BOTH_STORES, has_worker=True),
    _contender(ONCEWARD_OWN, "Onceward, own transactions", PROCESS, SHAPES, LATENCY, CRASH_WORK,
               RECOVERY, RECOVERY_RESTARTED, FAIRNESS, module="onceward", commit=SINGLE,
               stores=_BOTH_STORES, jobs=MANY_JOBS),
    _contender(ONCEWARD_SHARED, "Onceward, shared transactions", PROCESS, LATENCY, CRASH_WORK,
               module="onceward", commit=BATCH, stores=_BOTH_STORES, transaction=SHARED,
               jobs=MANY_JOBS),
    _contender(ONCEWARD_FLEET, "Onceward, each receiver's own memory", STORM, module="onceward"),
    _contender(ONCEWARD_FLEET_REDIS, "Onceward, with Redis", STORM, module="onceward",
               has_redis=True, redis_options=IN_MEMORY),
)  # fmt: skip

_HANDWRITTEN = (
    _contender("check-then-insert", "FastAPI, check then insert, psycopg", INGEST, CRASH_RECEIVE,
               module="check_then_insert", requires=("fastapi",)),
    _contender(ON_CONFLICT, "FastAPI, INSERT … ON CONFLICT, psycopg", INGEST, CRASH_RECEIVE,
               module="handwritten_psycopg", requires=("fastapi",)),
    _contender(ON_CONFLICT_ASYNCPG, "FastAPI, INSERT … ON CONFLICT, asyncpg", INGEST, RECEIVE,
               module="handwritten_asyncpg", requires=("fastapi", "asyncpg")),
    _contender("on-conflict-sqlite", "FastAPI, INSERT … ON CONFLICT", INGEST,
               module="handwritten_sqlite", requires=("fastapi",), stores=_SQLITE_ONLY),
    _contender("loop-psycopg", "SKIP LOCKED loop, psycopg", PROCESS, LATENCY, CRASH_WORK,
               module="handwritten_psycopg", commit=SINGLE, requires=("fastapi",)),
    _contender("loop-asyncpg", "SKIP LOCKED loop, asyncpg", PROCESS,
               module="handwritten_asyncpg", commit=SINGLE, requires=("fastapi", "asyncpg")),
    _contender("loop-psycopg-batch", "SKIP LOCKED loop, psycopg, batches", PROCESS, CRASH_WORK,
               module="handwritten_psycopg", commit=BATCH, requires=("fastapi",),
               batch_size=BATCH_SIZE, jobs=MANY_JOBS),
    _contender("loop-asyncpg-batch", "SKIP LOCKED loop, asyncpg, batches", PROCESS,
               module="handwritten_asyncpg", commit=BATCH, requires=("fastapi", "asyncpg"),
               batch_size=BATCH_SIZE, jobs=MANY_JOBS),
    _contender(SHAPES_LOOP, "SKIP LOCKED loop, psycopg", SHAPES, module="shapes_loop",
               commit=SINGLE, requires=("fastapi",), jobs=MANY_JOBS),
    _contender(SHAPES_LOOP_ASYNCPG, "SKIP LOCKED loop, asyncpg", SHAPES,
               module="shapes_loop_asyncpg", commit=SINGLE, requires=("fastapi", "asyncpg"),
               jobs=MANY_JOBS),
    _contender(IN_REQUEST, "FastAPI, handler in the request, psycopg", LATENCY,
               module="in_request", requires=("fastapi",), has_worker=True),
    _contender(NEIGHBOURS_LOOP, "SKIP LOCKED loop, ORDER BY id", FAIRNESS,
               module="neighbours_loop", commit=SINGLE, requires=("fastapi",)),
    _contender(SEPARATE_LOOPS, "SKIP LOCKED loops, four for each handler", FAIRNESS,
               module="separate_loops", commit=SINGLE, requires=("fastapi",)),
    _contender("loop-sqlite", "hand-written loop", PROCESS, LATENCY,
               module="handwritten_sqlite", commit=SINGLE, requires=("fastapi",),
               stores=_SQLITE_ONLY, concurrency=1, has_worker=True),
    _contender("loop-sqlite-batch", "hand-written loop, batches", PROCESS,
               module="handwritten_sqlite", commit=BATCH, requires=("fastapi",),
               stores=_SQLITE_ONLY, concurrency=1, batch_size=BATCH_SIZE, jobs=5 * MANY_JOBS),
)  # fmt: skip

_LIBRARIES = (
    _contender("procrastinate", "procrastinate", *_ALL, RECOVERY_RESTARTED, module="procrastinate",
               commit=SEPARATE, requires=("fastapi", "procrastinate"), jobs=4_000),
    _contender(PGQUEUER, "PgQueuer", *_ALL, RECOVERY_RESTARTED, module="pgqueuer", commit=SEPARATE,
               requires=("fastapi", "pgqueuer", "asyncpg"), batch_size=BATCH_SIZE),
    _contender(DBOS, "DBOS", *_ALL, RECOVERY_RESTARTED, module="dbos", commit=CHECKPOINT,
               requires=("fastapi", "dbos"), stores=_BOTH_STORES, jobs=1_500),
    # Celery's time-out on Redis counts from the delivery, so a short one repeats running tasks.
    _contender("celery", "Celery, Redis with appendfsync always", *_ALL, module="celery",
               commit=SEPARATE, requires=("fastapi", "celery", "redis"), jobs=4_000,
               has_redis=True),
    _contender("celery-default-redis", "Celery, Redis with its default persistence",
               CRASH_RECEIVE, CRASH_WORK, module="celery", commit=SEPARATE,
               requires=("fastapi", "celery", "redis"), jobs=4_000, has_redis=True,
               redis_options=()),
)  # fmt: skip

_LIMITS = (
    _contender(EMPTY_ENDPOINT, "limit of uvicorn: an empty endpoint", INGEST, RECEIVE,
               module="empty_endpoint", stores=_BOTH_STORES, has_database=False),
    _contender(BARE_PROTOCOL, "real limit: a bare protocol on httptools", INGEST, RECEIVE,
               module="bare_protocol", stores=_BOTH_STORES, has_database=False),
)  # fmt: skip

CONTENDERS: Sequence[Contender] = (*_ONCEWARD, *_HANDWRITTEN, *_LIBRARIES, *_LIMITS)
BY_NAME = {contender.name: contender for contender in CONTENDERS}


def select(benchmark: str, store: str, prefixes: Sequence[str] = ()) -> list[Contender]:
    """Return the contenders of a benchmark, all or those whose name has one of the prefixes."""
    return [
        contender
        for contender in CONTENDERS
        if benchmark in contender.benchmarks
        and store in contender.stores
        and (not prefixes or contender.name.startswith(tuple(prefixes)))
    ]
