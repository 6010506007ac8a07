"""Who runs: each contender, what it needs, and how it is set up."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from bench.redis_server import find_redis

INGEST, PROCESS, LATENCY = "ingest", "process", "latency"
POSTGRES, SQLITE = STORES = ("postgres", "sqlite")
OURS, WORKING, EMPTY, ONCONFLICT = "ours", "working", "empty", "onconflict"


@dataclass(frozen=True)
class Entry:
    """One contender in one set-up."""

    name: str
    title: str
    module: str
    measures: frozenset[str]
    needs: tuple[str, ...] = ()
    stores: frozenset[str] = frozenset({POSTGRES})
    concurrency: int = 8
    is_working: bool = False
    jobs: int = 20_000
    uses_redis: bool = False

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

FIELD: Sequence[Entry] = (
    _entry(OURS, "Onceward", INGEST, PROCESS, LATENCY, stores=BOTH),
    _entry(
        WORKING,
        "Onceward, its worker at work",
        INGEST,
        module="ours",
        stores=BOTH,
        is_working=True,
    ),
    _entry("check", "FastAPI, check, then insert", INGEST, needs=RECIPE),
    _entry(ONCONFLICT, "FastAPI, INSERT … ON CONFLICT", INGEST, needs=RECIPE),
    _entry(
        "onconflict-sqlite",
        "FastAPI, INSERT … ON CONFLICT",
        INGEST,
        module="sqlite_recipe",
        needs=RECIPE,
        stores=ONLY_SQLITE,
    ),
    *(
        _entry(
            f"handwritten-{concurrency}",
            f"SKIP LOCKED loop, {concurrency} at a time",
            *measures,
            module="handwritten",
            needs=RECIPE,
            concurrency=concurrency,
        )
        for concurrency, measures in ((1, (PROCESS,)), (8, (PROCESS, LATENCY)), (16, (PROCESS,)))
    ),
    _entry(
        "handwritten-sqlite",
        "hand-written loop",
        PROCESS,
        LATENCY,
        module="sqlite_recipe",
        needs=RECIPE,
        stores=ONLY_SQLITE,
    ),
    _entry(
        "procrastinate",
        "procrastinate",
        INGEST,
        PROCESS,
        LATENCY,
        needs=("fastapi", "procrastinate"),
        jobs=10_000,
    ),
    _entry(
        "pgqueuer",
        "PgQueuer",
        INGEST,
        PROCESS,
        LATENCY,
        needs=("fastapi", "pgqueuer", "asyncpg"),
    ),
    _entry(
        "dbos",
        "DBOS",
        INGEST,
        PROCESS,
        LATENCY,
        needs=("fastapi", "dbos"),
        stores=BOTH,
        jobs=6_000,
    ),
    _entry(
        "celery",
        "Celery, Redis: not durable",
        INGEST,
        PROCESS,
        LATENCY,
        needs=("fastapi", "celery", "redis"),
        jobs=10_000,
        uses_redis=True,
    ),
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
