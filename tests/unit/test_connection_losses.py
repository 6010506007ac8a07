"""Lost connections are counted by job, in a row, and in bounded memory."""

import pytest

from onceward.work import connection_losses
from onceward.work.connection_losses import ConnectionLosses


def test_losses_in_a_row_are_counted_by_job() -> None:
    losses = ConnectionLosses()
    assert [losses.add(1), losses.add(2), losses.add(1)] == [1, 1, 2]
    losses.clear(1)
    losses.clear(3)
    assert [losses.add(1), losses.add(2)] == [1, 2]


def test_the_job_that_lost_its_connection_first_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_losses, "MAX_JOBS", 2)
    losses = ConnectionLosses()
    assert [losses.add(job) for job in (1, 2, 1, 3)] == [1, 1, 2, 1]
    assert [losses.add(1), losses.add(2)] == [3, 1]
