"""The example app with writes that may run twice: each order is shipped once."""

from support.database import RawDatabase
from support.processes import ORDERS, Serve

ORDER = {"order": "o_1", "email": "jane@shop.example"}


def test_two_events_about_one_order_ship_it_once(database_url: str, raw_db: RawDatabase) -> None:
    with Serve(ORDERS, database_url, forked=True) as service:
        for event_id, event_type, email in (
            ("evt_1", "order.placed", "old@shop.example"),
            ("evt_2", "order.changed", "new@shop.example"),
            ("evt_3", "order.paid", ""),
            ("evt_4", "invoice.paid", ""),
            ("evt_4", "invoice.paid", ""),
        ):
            service.accept(event_id, event_type, {**ORDER, "email": email})
            service.wait_until_idle()
    assert raw_db.rows("SELECT * FROM orders") == [("o_1", "new@shop.example", "paid")]
    assert raw_db.rows("SELECT * FROM parcels") == [("o_1",)]
