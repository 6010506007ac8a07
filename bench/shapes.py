"""The shapes of handlers that users write, by their names in the results."""

from typing import Final

OWN, EFFECTS, SYNC, WAITING = ("own", "effects", "sync", "waiting")

TITLES: Final = {
    OWN: "own: one INSERT",
    EFFECTS: "effects: a key, then the INSERT",
    SYNC: "sync: the INSERT in a thread",
    WAITING: "waiting: a wait, then the INSERT",
}


def effect_key(event_id: str) -> str:
    """Return the key that an effect is marked with."""
    return f"book:{event_id}"
