"""What overlaps in the database still happens once. A slow insert makes sure that it overlaps."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from support.database import RawDatabase
from support.processes import APPS, SUBSCRIPTIONS, Serve

PROBE = APPS / "probe.py"
PAYMENT = {"account": "a", "amount": 5}


def make_inserts_slow(raw_db: RawDatabase, table: str) -> None:
    raw_db.rows(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'"
    )
    raw_db.rows(
        f"CREATE TRIGGER dawdle BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )


def test_two_receivers_that_write_one_id_at_the_same_time_make_one_event(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    make_inserts_slow(raw_db, "onceward.events")
    with (
        Serve(PROBE, postgres_url, forked=True) as one,
        Serve(PROBE, postgres_url, forked=True) as two,
        ThreadPoolExecutor(4) as pool,
    ):
        posts = [pool.submit(one.accept, "evt_1", "payment.made", PAYMENT) for _ in range(2)]
        posts += [pool.submit(two.accept, "evt_1", "payment.made", PAYMENT) for _ in range(2)]
        receipts = [post.result() for post in posts]
        one.wait_until_at_rest()
        assert Counter(receipt["duplicate"] for receipt in receipts) == {False: 1, True: 3}
        assert len({receipt["id"] for receipt in receipts}) == 1
        (event,) = one.items("events")
        assert event["deliveries"] == 4
        (job,) = one.items("jobs")
        assert (job["status"], job["attempts"]) == ("done", 1)
    assert raw_db.count("probes") == 1


def test_two_events_that_mark_one_effect_at_the_same_time_cause_it_once(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    make_inserts_slow(raw_db, "onceward.effects")
    with Serve(SUBSCRIPTIONS, postgres_url, forked=True) as service:
        for number in range(3):
            service.accept(f"evt_{number}", "subscription.paid", {"subscription_id": "sub_123"})
        service.wait_until_at_rest()
        jobs = service.items("jobs")
        assert {(job["status"], job["attempts"]) for job in jobs} == {("done", 1)}
        assert len(service.items("effects")) == 1
    assert raw_db.rows("SELECT id, activations FROM subscriptions") == [("sub_123", 1)]
