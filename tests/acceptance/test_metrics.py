"""The example app with batches: a bad measurement is listed, and takes no other one down."""

from support.database import RawDatabase
from support.processes import METRICS, Serve


def test_good_measurements_are_stored_once_and_bad_ones_are_listed(
    database_url: str, raw_db: RawDatabase
) -> None:
    with Serve(METRICS, database_url, "--workers", "0", forked=True) as service:
        for number in range(40):
            value = {13: -1.0, 27: "warm"}.get(number, 0.5)
            service.accept(f"evt_{number}", "metric.room", {"sensor": "attic", "value": value})
    with Serve(METRICS, database_url, forked=True) as service:
        service.wait_until_idle()
        failed = {item["external_event_id"] for item in service.items("jobs", status="failed")}
    assert raw_db.count("metrics") == 38
    assert failed == {"evt_13", "evt_27"}
    assert raw_db.rows("SELECT event, reason FROM unusable ORDER BY event") == [
        ("evt_13", "attic measured less than nothing"),
        ("evt_27", "Malformed payload: value: expected float, got str"),
    ]
