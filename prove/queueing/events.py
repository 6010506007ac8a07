"""The events of the queue's stages. An event has one handler, and so one job."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

HOT_KEYS = 4
MANY_KEYS = 60
HOT_SHARE = 0.5
SHOP_SHARE = 0.4
TRANSIENT_SHARE = 0.12
PERMANENT_SHARE = 0.06
LONG_SHARE = 0.4


class Handler(StrEnum):
    """The handlers of the inbox under test, each for the event type of the same name."""

    HOLD = "hold"
    """Has an ordering key; a failed job holds the later ones of its key."""
    CONTINUE = "continue"
    """Has an ordering key; the later jobs of a key continue after a failed one."""
    CAPPED = "capped"
    """Runs `CONCURRENCY` jobs at once, at most."""
    RATED = "rated"
    """Starts `RATE` jobs a second, at most."""
    NOTED = "noted"
    """Has neither order nor limits."""
    QUICK = "quick"
    FAILING = "failing"
    """Fails always."""
    SLOW = "slow"
    GATED = "gated"
    """Runs until the gate is opened."""


ORDERED = (Handler.HOLD, Handler.CONTINUE)
CONCURRENCY = 2
RATE = 30
"""Jobs in a second."""

SHARES = {
    Handler.HOLD: 30,
    Handler.CONTINUE: 30,
    Handler.CAPPED: 10,
    Handler.RATED: 5,
    Handler.NOTED: 25,
}


class Source(StrEnum):
    """The sources of the inbox under test."""

    INGEST = "ingest"
    SHOP = "shop"


class Behaviour(StrEnum):
    """How the handler treats an event."""

    PLAIN = ""
    TRANSIENT = "transient"
    """Fail about every second time, after the write."""
    PERMANENT = "permanent"
    """Fail for good about every second time, after the write; a requeue may succeed."""
    LONG = "long"
    """Wait before the write, long enough for an operator to cancel the job meanwhile."""


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """One event with all that its request contains."""

    id: str
    handler: Handler
    key: str = ""
    source: Source = Source.INGEST
    behaviour: Behaviour = Behaviour.PLAIN

    @property
    def path(self) -> str:
        """Return the path of its request."""
        return "/events/ingest" if self.source is Source.INGEST else f"/webhooks/{self.source}"

    @property
    def body(self) -> bytes:
        """Return the body of its request."""
        payload = {"key": self.key, "behaviour": self.behaviour}
        if self.source is Source.INGEST:
            envelope = {"event_id": self.id, "event_type": self.handler, "payload": payload}
            return msgspec.json.encode(envelope)
        return msgspec.json.encode({"id": self.id, "type": self.handler, **payload})


def mixed_events(rng: random.Random) -> Iterator[QueueEvent]:
    """Yield events of all handlers with rules, of hot and of many keys, without end."""
    handlers, weights = list(SHARES), list(SHARES.values())
    number = 0
    while True:
        number += 1
        (handler,) = rng.choices(handlers, weights)
        is_hot = rng.random() < HOT_SHARE
        key = f"hot-{rng.randrange(HOT_KEYS)}" if is_hot else f"key-{rng.randrange(MANY_KEYS)}"
        yield QueueEvent(
            id=f"queue-{number}",
            handler=handler,
            key=key,
            source=Source.SHOP if rng.random() < SHOP_SHARE else Source.INGEST,
            behaviour=_behaviour(handler, rng.random()),
        )


def _behaviour(handler: Handler, roll: float) -> Behaviour:
    shares = {Behaviour.TRANSIENT: TRANSIENT_SHARE, Behaviour.PERMANENT: PERMANENT_SHARE}
    if handler is Handler.NOTED:
        shares[Behaviour.LONG] = LONG_SHARE
    for behaviour, share in shares.items():
        roll -= share
        if roll < 0:
            return behaviour
    return Behaviour.PLAIN


def events_of(handler: Handler, prefix: str) -> Iterator[QueueEvent]:
    """Yield events of one handler, each with a key of its own, without end."""
    number = 0
    while True:
        number += 1
        name = f"{prefix}-{number}"
        yield QueueEvent(name, handler, key=name)


def take(events: Iterator[QueueEvent], count: int) -> Sequence[QueueEvent]:
    """Return the next events."""
    return [next(events) for _ in range(count)]
