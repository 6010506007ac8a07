"""Concurrent transactions apply once. Slow inserts make sure that they overlap."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from support.database import RawDatabase
from support.processes import APPS, SUBSCRIPTIONS, Serve

PROBE = APPS / "probe.py"
PAYMENT = {"account": "a", "amount": 5}


def make_inserts_slow(raw_db: RawDatabase, table: str) -> None:
    raw_db.rows(
        "CREATE FUNCTION slow_insert() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'"
    )
    raw_db.rows(
        f"CREATE TRIGGER slow_insert BEFORE INSERT ON {table} "
        "FOR EACH ROW EXECUTE FUNCTION slow_insert()"
    )


def test_two_receivers_that_record_one_id_concurrently_record_one_event(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    make_inserts_slow(raw_db, "onceward.events")
    with (
        Serve(PROBE, postgres_url, forked=True) as first,
        Serve(PROBE, postgres_url, forked=True) as second,
        ThreadPoolExecutor(4) as pool,
    ):
        posts = [pool.submit(first.accept, "evt_1", "payment.made", PAYMENT) for _ in range(2)]
        posts += [pool.submit(second.accept, "evt_1", "payment.made", PAYMENT) for _ in range(2)]
        receipts = [post.result() for post in posts]
        first.wait_until_idle()
        assert Counter(receipt["duplicate"] for receipt in receipts) == {False: 1, True: 3}
        assert len({receipt["id"] for receipt in receipts}) == 1
        (event,) = first.items("events")
        assert event["deliveries"] == 4
        (job,) = first.items("jobs")
        assert (job["status"], job["attempts"]) == ("done", 1)
    assert raw_db.count("probes") == 1


def test_events_that_mark_one_effect_concurrently_apply_it_once(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    make_inserts_slow(raw_db, "onceward.effects")
    with Serve(SUBSCRIPTIONS, postgres_url, forked=True) as service:
        for number in range(3):
            service.accept(f"evt_{number}", "subscription.paid", {"subscription_id": "sub_123"})
        service.wait_until_idle()
        jobs = service.items("jobs")
        assert {(job["status"], job["attempts"]) for job in jobs} == {("done", 1)}
        assert len(service.items("effects")) == 1
    assert raw_db.rows("SELECT id, activations FROM subscriptions") == [("sub_123", 1)]
