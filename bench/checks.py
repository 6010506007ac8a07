"""Checks after a trial: the handlers that were counted did their work once, and completely.

A rate alone would not notice a handler that ran twice, or a job that was never marked as done. Both
sides of a comparison are read in one statement, so that a commit of a killed worker which lands in
between is on both or on neither.
"""

from bench.contenders.interface import ContenderConfig
from bench.processes import TrialFailed
from bench.registry import BATCH, SINGLE, Contender
from bench.shapes import EFFECTS, effect_key
from bench.workloads import INSERT, CommittedWork, count_query, is_sqlite

_LOOP_DONE = "SELECT count(*) FROM events WHERE done_at IS NOT NULL"
_JOBS_DONE = "SELECT count(*) FROM {prefix}jobs WHERE status = 'done'"
_NOT_DONE_AT_ONCE = """
SELECT (SELECT count(*) FROM {prefix}attempts),
       (SELECT count(*) FROM {prefix}jobs WHERE status NOT IN ('queued', 'done'))
"""
# A key without its booking, or a booking without its key.
_UNPAIRED = """
SELECT count(*) FROM bookings FULL JOIN {effects} ON {key} = '{key_start}' || event_id
WHERE event_id IS NULL OR {key} IS NULL
"""


def check_work(contender: Contender, config: ContenderConfig) -> None:
    """Check the work of a contender whose worker was killed. Raises TrialFailed."""
    with CommittedWork.open(config.database) as committed:
        if config.workload == INSERT:
            committed.require_single_runs()
        if contender.commit in {SINGLE, BATCH}:
            _check_done(committed, contender, config)
        if contender.is_onceward:
            _check_attempts(committed, config)
        if config.shape == EFFECTS:
            _check_effects(committed, contender)


def _check_done(committed: CommittedWork, contender: Contender, config: ContenderConfig) -> None:
    """Check that as many jobs are done as handlers committed: one commit holds both."""
    query = _JOBS_DONE.format(prefix=_prefix(config)) if contender.is_onceward else _LOOP_DONE
    ((handlers, done),) = committed.rows(f"SELECT ({count_query(config.workload)}), ({query})")
    if handlers != done:
        raise TrialFailed(f"{handlers:,} handlers committed, but {done:,} jobs are done")


def _check_attempts(committed: CommittedWork, config: ContenderConfig) -> None:
    """Check that no job of Onceward failed or was tried again."""
    query = _NOT_DONE_AT_ONCE.format(prefix=_prefix(config))
    ((attempts, ended),) = committed.rows(query)
    if attempts or ended:
        raise TrialFailed(f"{attempts:,} attempts failed, and {ended:,} jobs ended without done")


def _check_effects(committed: CommittedWork, contender: Contender) -> None:
    """Check that every booking has its key, and every key its booking."""
    is_onceward = contender.is_onceward
    query = _UNPAIRED.format(
        effects="onceward.effects" if is_onceward else "effects",
        key="idempotency_key" if is_onceward else "key",
        key_start=effect_key(""),
    )
    ((unpaired,),) = committed.rows(query)
    if unpaired:
        raise TrialFailed(f"{unpaired:,} keys of effects or bookings have no counterpart")


def _prefix(config: ContenderConfig) -> str:
    """Return how the names of Onceward's tables begin."""
    return "onceward_" if is_sqlite(config.database) else "onceward."
