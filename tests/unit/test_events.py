"""The event that a handler gets."""

import dataclasses
from typing import Any

import pytest

from onceward import ConfigurationError, Event, Inbox
from tests.factories import make_event
from tests.inprocess import run_inbox


class Order:
    pass


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((Order,), "Event(Order) calls the class; write event: Event[Order], with square brackets"),
        ((), "Event() calls the class; write event: Event[Model], with square brackets"),
        (
            (dict[str, int],),
            "Event(dict) calls the class; write event: Event[dict], with square brackets",
        ),
    ],
)
def test_a_call_instead_of_brackets_is_refused_with_the_fix(
    arguments: tuple[object, ...], text: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Event(*arguments)
    assert str(refused.value) == text


def test_an_event_cannot_be_changed() -> None:
    event = make_event()
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.id = "evt_2"  # type: ignore[misc]


def test_events_are_equal_by_their_fields() -> None:
    event = make_event()
    assert event == Event(**vars(event))
    assert event != Event(**{**vars(event), "id": "evt_2"})


async def test_the_event_of_a_handler_has_every_field(sqlite_url: str) -> None:
    inbox = Inbox()
    events: list[Event[Any]] = []

    @inbox.on("a")
    async def keep(event: Event[Any]) -> None:
        events.append(event)

    async with run_inbox(inbox, sqlite_url) as bench:
        await bench.run_event("a", {"id": 1})
    (event,) = events
    assert vars(event).keys() == {field.name for field in dataclasses.fields(event)}
    assert (event.id, event.type, event.payload) == ("evt_1", "a", {"id": 1})
    assert repr(event).startswith("Event(id='evt_1', source='ingest', type='a', ")
