"""A process recognises duplicates of the events that it recorded last."""

from onceward.model.events import Outcome, Receipt
from onceward.store.recent_events import GENERATION_EVENTS, RecentEvents
from tests.factories import arrival


def add(
    recent: RecentEvents, event_id: str, event: int, outcome: Outcome = Outcome.RECORDED
) -> None:
    recent.add([arrival(event_id)], [Receipt(event, outcome)])


def test_an_event_is_recognised_by_its_source_its_id_and_its_body() -> None:
    recent = RecentEvents()
    add(recent, "a", 7)
    assert recent.find_original(arrival("a")) == 7
    assert recent.find_original(arrival("b")) is None
    assert recent.find_original(arrival("a", source="ingest")) is None
    assert recent.find_original(arrival("a", body=b"other")) is None


def test_a_conflict_does_not_replace_its_event() -> None:
    recent = RecentEvents()
    add(recent, "a", 7)
    recent.add([arrival("a", body=b"other")], [Receipt(7, Outcome.CONFLICT)])
    assert recent.find_original(arrival("a")) == 7
    assert recent.find_original(arrival("a", body=b"other")) is None


def test_a_duplicate_replaces_the_ledger_id_of_its_event() -> None:
    recent = RecentEvents()
    add(recent, "a", 7)
    add(recent, "a", 8, Outcome.DUPLICATE)
    assert recent.find_original(arrival("a")) == 8


def test_at_least_one_and_at_most_two_generations_are_kept() -> None:
    recent = RecentEvents()
    total = 3 * GENERATION_EVENTS
    for number in range(total):
        add(recent, str(number), number + 1)
    kept = [number for number in range(total) if recent.find_original(arrival(str(number)))]
    assert GENERATION_EVENTS <= len(kept) <= 2 * GENERATION_EVENTS
    assert kept[-1] == total - 1
