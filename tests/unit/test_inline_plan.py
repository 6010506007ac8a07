"""The result of an event that no handler of the request ran for, from its jobs."""

from datetime import UTC, datetime

import pytest

from onceward.errors import EventChanged
from onceward.model.events import Outcome, Receipt
from onceward.model.inline import InlineStatus, LedgerEvent, LedgerJob
from onceward.model.jobs import JobStatus
from onceward.work.inline.plan import recorded_status

DUPLICATE = Receipt(1, Outcome.DUPLICATE)
CONFLICT = Receipt(1, Outcome.CONFLICT)
DONE, QUEUED = (JobStatus.DONE, None), (JobStatus.QUEUED, None)
CANCELLED = (JobStatus.CANCELLED, None)
INLINE, PERMANENT = (JobStatus.FAILED, "inline"), (JobStatus.FAILED, "permanent")


def event_with(*jobs: tuple[JobStatus, str | None]) -> LedgerEvent:
    """Return a recorded event with a job in each of some states."""
    return LedgerEvent(
        1,
        b"",
        datetime.now(UTC),
        tuple(
            LedgerJob(number, "credit", status, failure_type, 1, 3)
            for number, (status, failure_type) in enumerate(jobs, 1)
        ),
    )


STATUSES: list[tuple[list[tuple[JobStatus, str | None]], InlineStatus]] = [
    ([], InlineStatus.IGNORED),
    ([CANCELLED], InlineStatus.IGNORED),
    ([DONE], InlineStatus.ALREADY_PROCESSED),
    ([DONE, CANCELLED], InlineStatus.ALREADY_PROCESSED),
    ([DONE, QUEUED], InlineStatus.ACCEPTED),
    ([DONE, PERMANENT], InlineStatus.ACCEPTED),
    ([CANCELLED, QUEUED], InlineStatus.ACCEPTED),
]


def test_an_open_job_keeps_an_event_from_being_processed(subtests: pytest.Subtests) -> None:
    for jobs, status in STATUSES:
        with subtests.test(jobs=jobs):
            assert recorded_status(event_with(*jobs), DUPLICATE) is status
            assert recorded_status(event_with(*jobs), CONFLICT) is InlineStatus.ACCEPTED


def test_an_event_whose_job_failed_within_another_request_is_looked_at_again() -> None:
    with pytest.raises(EventChanged):
        recorded_status(event_with(DONE, INLINE), DUPLICATE)
    assert recorded_status(event_with(INLINE), CONFLICT) is InlineStatus.ACCEPTED


def test_an_event_without_a_row_is_ignored() -> None:
    assert recorded_status(None, DUPLICATE) is InlineStatus.IGNORED
