"""Secrets of the form ``name:key``. The scheme checks the name against the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceward.errors import ConfigurationError
from onceward.sources.schemes.algorithms import MIN_SECRET_BYTES, secret_bytes
from onceward.sources.schemes.labelled_keys import LabelledKey, key_id
from onceward.sources.schemes.scheme import Key


def split_named_secret(secret: str | bytes, form: str) -> tuple[str, bytes]:
    """Split a secret into its name and its key. Raises ConfigurationError that shows the `form`.

    The name before a key in PEM or JSON may contain colons.
    """
    whole = secret_bytes(secret)
    beginning = next((mark for mark in (b"-----BEGIN", b"{") if b":" + mark in whole), b"")
    name, colon, key = whole.partition(b":" + beginning)
    if not colon or not name or not key or name.startswith((b"-----", b"{")):
        raise ConfigurationError(f"is not {form}")
    return name.decode(errors="replace"), beginning + key


def make_named_keys(
    secret: str | bytes, form: str, make_keys: Callable[[bytes], Sequence[Key]]
) -> tuple[Key, ...]:
    """Parse a named secret into keys. Raises ConfigurationError."""
    name, unnamed = split_named_secret(secret, form)
    if len(unnamed) < MIN_SECRET_BYTES:
        raise ConfigurationError(
            f"has {len(unnamed)} bytes after its name; the minimum is {MIN_SECRET_BYTES}"
        )
    return tuple(LabelledKey(key, name=name, id=key_id(key)) for key in make_keys(unnamed))
