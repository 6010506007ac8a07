"""Keys with a label: a name from the configuration, or the id that the key's owner gave it."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.sources.schemes.scheme import Key


class NamedKey:
    """A key with its name."""

    __slots__ = ("key", "name")

    def __init__(self, name: str, key: Key) -> None:
        self.name = name
        self.key = key

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        """Return whether the key made one of the signatures over the content."""
        return self.key.verifies(content, signatures)


class IdentifiedKey:
    """A key with its id, by which a token names the key that signed it."""

    __slots__ = ("key", "key_id")

    def __init__(self, key_id: str | None, key: Key) -> None:
        self.key_id = key_id
        self.key = key

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        """Return whether the key made one of the signatures over the content."""
        return self.key.verifies(content, signatures)


def key_id(key: Key) -> str | None:
    """Return the id of a key; None if it has none."""
    unnamed = key.key if isinstance(key, NamedKey) else key
    return unnamed.key_id if isinstance(unnamed, IdentifiedKey) else None
