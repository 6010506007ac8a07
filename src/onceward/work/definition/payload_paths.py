"""Paths into the payload of an event: the names of members with dots between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from onceward.model.events import invalid_text_reason

_PREFIXES: Final = ("json:", "$.", "/")
"""How paths begin in other notations."""
_BRACKETS: Final = re.compile(r"""\[["']?([^\]\["']*)["']?\]""")
_KINDS: Final = {bool: "a boolean", dict: "an object", list: "a list"}


def path_faults(option: str, path: object, example: str = "data.object.id") -> Iterator[str]:
    """Yield why the value of an option cannot be a path. The `example` is one that could be."""
    advice = f"use a path into the payload, such as {example!r}"
    if not isinstance(path, str):
        yield f"{option} is {path!r}; {advice}"
    elif not path:
        yield f"{option} is empty; {advice}"
    elif fault := invalid_text_reason(path) or _notation_fault(path, example):
        yield f"{option} {fault}"


def _notation_fault(path: str, example: str) -> str | None:
    if prefix := next((text for text in _PREFIXES if path.startswith(text)), None):
        names = path.removeprefix(prefix)
        dotted = names.replace("/", ".") if prefix == "/" else names
        return f"is {path!r}; write {dotted!r}"
    if path.startswith("header:"):
        return f"is {path!r}; it is read from the payload: use a path such as {example!r}"
    if path != path.strip():
        return f"is {path!r}, with a space at an end; write {path.strip()!r}"
    if "[" in path:
        dotted = _BRACKETS.sub(r".\1", path).removeprefix(".")
        is_complete = "[" not in dotted and "" not in dotted.split(".")
        example = dotted if is_complete else "items.0.id"
        return f"is {path!r}; write the position in a list as a number: {example!r}"
    if "" in path.split("."):
        return f"is {path!r}, which has an empty name; write the names with dots between them"
    return None


def find_value(document: Any, path: Sequence[str], default: object = None) -> Any:
    """Return the value at a path, or the default if the payload lacks it."""
    for name in path:
        match document:
            case dict() if name in document:
                document = document[name]
            case list() if name.isascii() and name.isdigit() and int(name) < len(document):
                document = document[int(name)]
            case _:
                return default
    return document


def wrong_kind(option: str, path: str, value: object) -> str:
    """Return the error of a value that is neither a text nor a number."""
    return f"{option} {path} is {_KINDS[type(value)]}; the path must lead to a text or a number"
