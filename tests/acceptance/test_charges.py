"""The example app with outside calls: each order is charged and mailed once."""

from support.database import RawDatabase
from support.processes import CHARGES, Serve

ORDER = {"order": "o_1", "email": "jane@shop.example"}


def test_two_events_of_one_order_are_charged_once(database_url: str, raw_db: RawDatabase) -> None:
    with Serve(CHARGES, database_url, forked=True) as service:
        service.accept("evt_1", "order.placed", ORDER)
        service.wait_until_idle()
        service.accept("evt_2", "order.placed", ORDER)
        service.wait_until_idle()
        assert service.job("evt_2")["status"] == "done"
        effects = service.items("effects")
    assert [(each["function"], each["status"], each["call_no"]) for each in effects] == [
        ("send_mail", "succeeded", 1),
        ("charge", "succeeded", 1),
    ]
    assert raw_db.rows("SELECT * FROM receipts") == [("o_1", "receipt-charge:o_1")]


def test_a_process_that_dies_after_the_charge_repeats_it_under_its_key(
    sqlite_url: str,
) -> None:
    with Serve(CHARGES, sqlite_url, failpoints="effect.called:kill:1", forked=True) as service:
        service.accept("evt_1", "order.placed", ORDER)
        service.wait()
    with Serve(CHARGES, sqlite_url, forked=True) as service:
        service.wait_until_idle()
        assert service.job("evt_1")["status"] == "done"
        effects = service.items("effects")
    assert [(each["function"], each["call_no"]) for each in effects] == [
        ("send_mail", 1),
        ("charge", 2),
    ]
    assert RawDatabase(sqlite_url).count("receipts") == 1
