"""Keys with a label: a name from the configuration, or the id that the key's owner gave it."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.sources.schemes.scheme import Key


class LabelledKey:
    """A key with its name, its id, by which a token names the key that signed it, or both."""

    __slots__ = ("_key", "id", "name")

    def __init__(self, key: Key, *, name: str = "", id: str | None = None) -> None:
        self._key = key
        self.name = name
        self.id = id

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        """Return whether the key made one of the signatures over the content."""
        return self._key.verifies(content, signatures)


def key_name(key: Key) -> str:
    """Return the name of a key; "" if it has none."""
    return key.name if isinstance(key, LabelledKey) else ""


def key_id(key: Key) -> str | None:
    """Return the id of a key; None if it has none."""
    return key.id if isinstance(key, LabelledKey) else None
