"""An outage of a worker's claims: a warning at first, and an error once a minute."""

from datetime import UTC, datetime

import pytest

from onceward.errors import StoreUnavailable
from onceward.work.claiming.claim_outage import REPORT_INTERVAL_SECONDS, ClaimOutage
from tests.factories import FakeClock

ERROR = StoreUnavailable("permission denied for table jobs")


def test_an_outage_is_repeated_as_an_error_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    outage = ClaimOutage("host:1", clock)
    outage.claim_succeeded()
    assert (outage.since, outage.reason, caplog.messages) == (None, "", [])
    began = datetime.fromtimestamp(clock.seconds, UTC)
    for _ in range(int(2 * REPORT_INTERVAL_SECONDS) + 1):
        outage.claim_failed(ERROR)
        clock.seconds += 1
    assert (outage.since, outage.reason) == (began, "permission denied for table jobs")
    outage.claim_succeeded()
    assert (outage.since, outage.reason) == (None, "")
    outage.claim_succeeded()
    reason = "permission denied for table jobs"
    again = "still retrying every second"
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        ("WARNING", f"no jobs can be claimed; retrying every second: {reason}"),
        ("ERROR", f"no jobs could be claimed for 60 s; {again}: {reason}"),
        ("ERROR", f"no jobs could be claimed for 120 s; {again}: {reason}"),
        ("WARNING", "jobs can be claimed again, after 121 s"),
    ]
    assert all(vars(line)["worker"] == "host:1" for line in caplog.records)


def test_the_reason_that_others_see_names_no_address() -> None:
    outage = ClaimOutage("host:1", FakeClock())
    text = 'connection to server at "db.internal" (10.0.0.3), port 5432 failed: too many clients'
    outage.claim_failed(StoreUnavailable(text))
    expected = "connection to server at … (…), port 5432 failed: too many clients"
    assert outage.reason == expected
