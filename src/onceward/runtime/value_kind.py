"""The type of a value, for error messages: they never show the value itself."""

from __future__ import annotations


def kind_of(value: object) -> str:
    """Return the type of a value with its article, such as ``a list``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
