"""A secret that says what it is for: ``name:key``. What the name means, the scheme checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceward.errors import ConfigurationError
from onceward.sources.schemes.algorithms import secret_bytes
from onceward.sources.schemes.scheme import Key


class NamedKey:
    """A key, and the name before it."""

    __slots__ = ("_key", "name")

    def __init__(self, name: str, key: Key) -> None:
        self.name = name
        self._key = key

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        """Whether one of the signatures was made over the content with this key."""
        return self._key.verifies(content, signatures)


def split_named_secret(secret: str | bytes, form: str) -> tuple[str, bytes]:
    """The name and the key of a secret. Raises ConfigurationError, which shows its `form`.

    A key in PEM begins at its first line: the name before it may have colons of its own.
    """
    whole = secret_bytes(secret)
    is_pem = b":-----BEGIN" in whole
    name, colon, key = whole.partition(b":-----BEGIN" if is_pem else b":")
    if not colon or not name or not key or name.startswith(b"-----"):
        raise ConfigurationError(f"is not {form}")
    return name.decode(errors="replace"), b"-----BEGIN" + key if is_pem else key


def make_named_keys(
    secret: str | bytes, form: str, make_keys: Callable[[bytes], Sequence[Key]]
) -> tuple[NamedKey, ...]:
    """The keys of a secret, under its name. Raises ConfigurationError."""
    name, unnamed = split_named_secret(secret, form)
    return tuple(NamedKey(name, key) for key in make_keys(unnamed))


def key_name(key: Key) -> str:
    """The name before a key; "" where it has none."""
    return key.name if isinstance(key, NamedKey) else ""
