"""The workload of the stage: as in the other stages, with pairs of events that share an effect."""

from prove.workload import EventKind, Workload
from support.client_history import Expectation

PAIR_ONE_IN = 20
"""Of so many events, the first two share the key of an effect."""

_FIRST, _SECOND = 0, 1
_KINDS = {
    EventKind.WITH_EFFECT: EventKind.PLAIN,
    EventKind.WANTED: EventKind.PLAIN,
    EventKind.UNWANTED: EventKind.PLAIN,
    EventKind.REVIEWED: EventKind.PLAIN,
    EventKind.BATCHED: EventKind.PLAIN,
    EventKind.BATCH_FLAKY: EventKind.FLAKY,
    EventKind.BATCH_DECLINED: EventKind.DECLINED,
}
"""Kinds that the inbox of this stage does not have. Only pairs mark an effect."""
_DECLINED_PAIR = Expectation(can_fail=True, has_effect=True)


class PairedWorkload(Workload):
    """Two events of twenty mark the same effect. The second often fails, and is requeued later."""

    def kind(self, number: int) -> EventKind:
        """Return the kind of an event. Only pairs mark an effect."""
        if number % PAIR_ONE_IN in (_FIRST, _SECOND):
            return EventKind.WITH_EFFECT
        kind = super().kind(number)
        return _KINDS.get(kind, kind)

    def expectation(self, number: int) -> Expectation | None:
        """Return how an event may end."""
        if number % PAIR_ONE_IN == _SECOND:
            return _DECLINED_PAIR
        return super().expectation(number)

    def effect_key(self, number: int) -> str:
        """Return the key that the event of a pair marks; an empty text for others."""
        is_paired = number % PAIR_ONE_IN in (_FIRST, _SECOND)
        return f"pair:{number // PAIR_ONE_IN}" if is_paired else ""

    def body(self, number: int, variant: int) -> bytes:
        """Return the exact bytes of a request."""
        body = super().body(number, variant)
        key = f'"key":"{self.effect_key(number)}","variant":'.encode()
        body = body.replace(b'"variant":', key)
        if number % PAIR_ONE_IN == _SECOND:
            body = body.replace(b'"behaviour":""', b'"behaviour":"decline"')
        return body
