"""What a process remembers of the last events."""

from onceward.model.events import Outcome, Receipt
from onceward.store.recent_events import MOST, RecentEvents
from tests.factories import arrival


def noted(
    recent: RecentEvents, event_id: str, event: int, outcome: Outcome = Outcome.RECORDED
) -> None:
    recent.note([arrival(event_id)], [Receipt(event, outcome)])


def test_an_event_is_known_by_its_source_its_id_and_its_body() -> None:
    recent = RecentEvents()
    noted(recent, "a", 7)
    assert recent.event(arrival("a")) == 7
    assert recent.event(arrival("b")) is None
    assert recent.event(arrival("a", source="ingest")) is None
    assert recent.event(arrival("a", body=b"other")) is None


def test_a_conflict_does_not_take_the_place_of_its_event() -> None:
    recent = RecentEvents()
    noted(recent, "a", 7)
    recent.note([arrival("a", body=b"other")], [Receipt(7, Outcome.CONFLICT)])
    assert recent.event(arrival("a")) == 7
    assert recent.event(arrival("a", body=b"other")) is None


def test_an_event_that_was_recorded_anew_is_known_by_its_new_id() -> None:
    recent = RecentEvents()
    noted(recent, "a", 7)
    noted(recent, "a", 8, Outcome.DUPLICATE)
    assert recent.event(arrival("a")) == 8


def test_no_more_is_remembered_than_it_may_be() -> None:
    recent = RecentEvents()
    for number in range(3 * MOST):
        noted(recent, str(number), number + 1)
    known = [number for number in range(3 * MOST) if recent.event(arrival(str(number)))]
    assert MOST <= len(known) <= 2 * MOST
    assert known[-1] == 3 * MOST - 1
