"""Lost connections are counted by job, in a row, and in bounded memory."""

from datetime import UTC, datetime

import pytest

from onceward.model.jobs import Job
from onceward.work.running import connection_losses
from onceward.work.running.connection_losses import ConnectionLosses


def job(number: int, job_id: int = 1) -> Job:
    """Return the job of an event."""
    now = datetime.now(UTC)
    return Job(job_id, "credit", 0, 3, 1, "stripe", f"evt_{number}", "x", None, now, b"{}", b"")


def test_losses_in_a_row_are_counted_by_job() -> None:
    losses = ConnectionLosses()
    assert [losses.add(job(1)), losses.add(job(2)), losses.add(job(1))] == [1, 1, 2]
    losses.clear(job(1))
    losses.clear(job(3))
    assert [losses.add(job(1)), losses.add(job(2))] == [1, 2]


def test_a_job_that_is_not_recorded_yet_is_the_same_under_each_of_its_ids() -> None:
    losses = ConnectionLosses()
    assert [losses.add(job(1, job_id=-5)), losses.add(job(1, job_id=-9))] == [1, 2]


def test_the_job_that_lost_its_connection_first_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_losses, "MAX_JOBS", 2)
    losses = ConnectionLosses()
    assert [losses.add(job(number)) for number in (1, 2, 1, 3)] == [1, 1, 2, 1]
    assert [losses.add(job(1)), losses.add(job(2))] == [3, 1]
