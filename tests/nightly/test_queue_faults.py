"""The model of the queue finds each of these faults, in as few steps as it takes."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from onceward.model.admin import Pausable
from onceward.model.jobs import FailureType
from onceward.store import queries
from tests.database_pool import DatabasePool
from tests.queue_machine import JobsMachine

Step = tuple[str, dict[str, Any]]

LIVE = 1  # picks a job that is in progress
ALL = {"credit": 4, "notify": 4, "log": 4}
NOTIFY_OF_FIRST = 1  # picks the second job: of the first event, for the handler notify


def record(*events: int) -> Step:
    return "record", {"deliveries": [(event, 0) for event in events]}


def claimed(limit: int = 6, *, solo: bool = False, **wanted: int) -> Step:
    return "claim", {"limit": limit, "solo": solo, "looks": True, "wanted": wanted or ALL}


WORK_OFF_A_KEY: tuple[Step, ...] = (
    record(0, 3),
    claimed(notify=4),
    ("settle_done", {"pick": LIVE}),
    claimed(notify=4),
)
REQUEUE_BEFORE_A_JOB_IN_FLIGHT: tuple[Step, ...] = (
    record(0, 3),
    claimed(notify=4),
    ("settle_fail", {"pick": LIVE, "failure": FailureType.PERMANENT}),
    claimed(notify=4),
    ("requeue", {"pick": NOTIFY_OF_FIRST}),
    claimed(notify=4),
)
CLAIM_TO_THE_LIMIT: tuple[Step, ...] = (record(0, 4, 5), claimed(notify=4))
CLAIM_FOR_TWO_HANDLERS: tuple[Step, ...] = (record(0, 4, 1, 5), claimed(2, credit=4, log=4))
DIE_ALONE: tuple[Step, ...] = (
    record(1),
    claimed(),
    ("expire", {"forgets": True}),
    claimed(solo=True),
    ("expire", {"forgets": True}),
    claimed(),
)
CLAIM_WHILE_PAUSED: tuple[Step, ...] = (
    record(1),
    ("pause_or_resume", {"kind": Pausable.HANDLER, "number": 2}),
    claimed(),
)
CANCEL_THE_HEAD_OF_A_KEY: tuple[Step, ...] = (
    record(0, 3),
    claimed(notify=4),
    ("cancel", {"pick": NOTIFY_OF_FIRST}),
    claimed(notify=4),
)
RESUME_A_SOURCE: tuple[Step, ...] = (
    ("pause_or_resume", {"kind": Pausable.SOURCE, "number": 0}),
    record(1),
    claimed(),
    ("pause_or_resume", {"kind": Pausable.SOURCE, "number": 0}),
    claimed(),
)

FAULTS = {
    "a lost wake-up": (
        WORK_OFF_A_KEY,
        ("wake_keys", r"SET parked = (false|0)", "SET parked = (1 = 1)"),
    ),
    "two of one key in flight": (
        REQUEUE_BEFORE_A_JOB_IN_FLIGHT,
        ("claim", r"AND guarded\.(id = ANY|value IN)", r"AND 0 = 1 \g<0>"),
    ),
    "a job before the one ahead of it": (
        WORK_OFF_A_KEY,
        ("claim", r"ORDER BY (j\.)?event\b", r"ORDER BY \1event DESC"),
    ),
    "a limit that is passed": (
        CLAIM_TO_THE_LIMIT,
        ("claim", r"h\.concurrency - \(", "1000 + h.concurrency - ("),
    ),
    "a starved handler": (
        CLAIM_FOR_TWO_HANDLERS,
        ("claim", r"ORDER BY turn, available_at, id(\s+LIMIT)", r"ORDER BY handler, turn\1"),
    ),
    "an attempt counted twice": (
        DIE_ALONE,
        (
            "reclaim",
            r"SET attempts = (j\.)?attempts \+ \(",
            r"SET attempts = \1attempts + 1 + (",
        ),
    ),
    "a lease that outlives its worker": (
        DIE_ALONE,
        ("reclaim", r"(l\.)?until < ", r"1 = 0 AND \1until < "),
    ),
    "a pause that is ignored": (CLAIM_WHILE_PAUSED, ("claim", r"h\.paused_at IS NULL", "1 = 1")),
    "a cancelled job that holds its key": (
        CANCEL_THE_HEAD_OF_A_KEY,
        ("wake_key", r"SET parked = (false|0)", "SET parked = (1 = 1)"),
    ),
    "a resumed source that waits": (
        RESUME_A_SOURCE,
        ("wake_parked", r"SET parked = (false|0)", "SET parked = (1 = 1)"),
    ),
}


@contextmanager
def sabotaged(dialect: str, name: str, pattern: str, replacement: str) -> Iterator[None]:
    """Change a statement of a store."""
    texts = queries._load(dialect)
    original = texts[name]
    texts[name], count = re.subn(pattern, replacement, original)
    assert count, f"the statement {name} has changed; adapt its sabotage"
    try:
        yield
    finally:
        texts[name] = original


def play(steps: Sequence[Step], database: str) -> None:
    """Run some steps beside the model, and compare after each."""
    machine = JobsMachine(database, lambda _: None)
    try:
        machine.open()
        for name, arguments in steps:
            getattr(machine, name)(**arguments)
            machine.jobs_match_the_model()
            machine.effects_attempts_and_audit_match_the_model()
    finally:
        machine.teardown()


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_model_finds_each_fault_and_nothing_without_it(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, subtests: pytest.Subtests
) -> None:
    @contextmanager
    def fresh_database() -> Iterator[str]:
        if dialect == "sqlite":
            with TemporaryDirectory(dir=tmp_path) as folder:
                yield f"sqlite:///{folder}/onceward.db"
        else:
            pool: DatabasePool = request.getfixturevalue("postgres_pool")
            url = pool.acquire()
            yield url
            pool.release(url)

    for fault, (steps, change) in FAULTS.items():
        with (
            subtests.test(fault),
            fresh_database() as database,
            sabotaged(dialect, *change),
            pytest.raises(AssertionError),
        ):
            play(steps, database)
        with subtests.test(f"without {fault}"), fresh_database() as database:
            play(steps, database)
